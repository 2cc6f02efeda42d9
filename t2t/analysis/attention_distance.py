"""How far attention looks: the mean distance in pixels, by layer and head."""

import torch
from jaxtyping import Float
from torch import Tensor

from t2t.analysis.attention_maps import AttentionLayer
from t2t.models.config import Size
from t2t.models.token_grid import Grid


def token_distances(
    grid: Grid, image_size: Size
) -> Float[Tensor, "tokens other_tokens"]:
    """The distance in pixels between the centres of each two tokens."""
    rows, columns = (
        torch.arange(num, dtype=torch.float32) * side / num
        for num, side in zip(grid, image_size, strict=True)
    )
    places = torch.cartesian_prod(rows, columns)
    return torch.cdist(places, places, compute_mode="donot_use_mm_for_euclid_dist")


def attention_distance(
    layer: AttentionLayer, image_size: Size
) -> Float[Tensor, " heads"]:
    """The mean distance that each head looks, in pixels, weighted by attention.

    For every token of the image, distances to all others count by its attention to
    them; then the mean over tokens. Class and distillation tokens have no place, so
    they are left out, and the attention of a token to the others is scaled to sum to 1.
    """
    distances = token_distances(layer.grid, image_size)
    found = []
    for weights in layer.weights[:, layer.num_prefix :, layer.num_prefix :]:
        weighted = (weights * distances).sum(1) / weights.sum(1).clamp(min=1e-30)
        found.append(weighted.mean())
    return torch.stack(found)


def uniform_distance(grid: Grid, image_size: Size) -> float:
    """The same for attention that looks at all tokens alike."""
    return float(token_distances(grid, image_size).mean())
