"""Maps of an image's tokens, and their colours."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from t2t.analysis.attention_maps import forward_hooks
from t2t.models.vit import VisionTransformer
from t2t.shapes import FeatureMap, Images

Colours = Float[Tensor, "rows columns 3"]


def token_maps(model: VisionTransformer, image: Images) -> list[tuple[str, FeatureMap]]:
    """The tokens after each soft split and after the last block, on their grid."""
    maps: list[FeatureMap] = []

    def keep(part: nn.Module, inputs: object, output: FeatureMap) -> None:
        maps.append(output)

    steps = getattr(model.tokenizer, "steps", ())
    with forward_hooks([*steps, model.tokenizer], keep):
        tokens = model.forward_features(image)[:, model.config.num_prefix_tokens :]
    rows, columns = maps[-1].shape[-2:]
    last = tokens.transpose(1, 2).unflatten(2, model.encoder.grids((rows, columns))[-1])
    names = ["before the blocks"]
    if len(maps) > 1:
        names = [f"after split {number + 1}" for number in range(len(maps))]
    return [*zip(names, maps, strict=True), ("after the last block", last)]


def pca_colours(tokens: FeatureMap) -> Colours:
    """The first three principal components of a token map, as red, green and blue."""
    return shared_pca_colours(tokens)[0]


def shared_pca_colours(
    maps: FeatureMap,
) -> Float[Tensor, "batch rows columns 3"]:
    """The same of several maps, in which a colour means the same."""
    rows = maps.permute(0, 2, 3, 1).flatten(0, 2).cpu().double()
    rows = rows - rows.mean(0)
    # Directions from the covariance: its size does not grow with the tokens.
    _, directions = torch.linalg.eigh(rows.T @ rows)
    components = rows @ directions.flip(1)[:, :3]
    # The sign of a component is arbitrary: the farthest token gets the bright end.
    farthest = components.gather(0, components.abs().argmax(0, keepdim=True))
    components = components * farthest.sign()
    low, high = components.amin(0), components.amax(0)
    colours = (components - low) / (high - low).clamp(min=1e-12)
    colours = torch.nn.functional.pad(colours, (0, 3 - colours.shape[1]))
    return colours.float().unflatten(0, (len(maps), *maps.shape[-2:]))
