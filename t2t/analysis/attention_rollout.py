"""Evidence for a prediction: token maps, attention rollout and occlusion."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from t2t.models.layers import SelfAttention
from t2t.models.vit import VisionTransformer
from t2t.shapes import FeatureMap, Images

NUM_CELLS = 8
"""Rows and columns of the occlusion map."""
MAX_TOKENS = 2048
"""Above it no attention map is computed: its size is the square of this."""
BATCH_SIZE = 32

Map = Float[Tensor, "rows columns"]
Colours = Float[Tensor, "rows columns 3"]


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """The evidence in one image for a class."""

    tokens: tuple[tuple[str, Colours], ...]
    """Named token maps; tokens of similar colour are similar."""
    attention: Map | None
    """Attention rollout, relative to its mean."""
    occlusion: Map
    """Percentage points that the class's probability falls where a part is hidden."""


@torch.no_grad()
def explain(model: nn.Module, image: Images, class_index: int) -> Explanation:
    """The evidence in one normalised image for a class.

    Token maps and attention exist for our transformers only.
    """
    tokens: list[tuple[str, Colours]] = []
    attention = None
    if isinstance(model, VisionTransformer):
        maps = token_maps(model, image)
        tokens = [(name, pca_colours(features)) for name, features in maps]
        attention = attention_rollout(model, image)
    return Explanation(
        tokens=tuple(tokens),
        attention=attention,
        occlusion=occlusion_map(model, image, class_index),
    )


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


def attention_rollout(model: VisionTransformer, image: Images) -> Map | None:
    """Attention from the head's input back to the tokens, through all blocks.

    Heads are averaged, and each block's skip counts as much as its attention. None
    where there are too many tokens, or where the mixer mixes keys or stages mix tokens.
    """
    grid = model.tokenizer.grids((image.shape[-2], image.shape[-1]))[-1]
    num_prefix = model.config.num_prefix_tokens
    num_tokens = num_prefix + grid[0] * grid[1]
    mixers = [part for part in model.modules() if isinstance(part, SelfAttention)]
    if len(mixers) < len(model.encoder.blocks):  # blocks with a user's own mixer
        return None
    if model.encoder.stage_ends:
        return None
    if num_tokens > MAX_TOKENS or any(mixer.shorten is not None for mixer in mixers):
        return None
    rollout = torch.zeros(num_tokens, dtype=torch.float64)
    if model.config.pool == "class":  # and the distillation token beside it
        rollout[:num_prefix] = 1 / num_prefix
    else:
        rollout[num_prefix:] = 1 / (num_tokens - num_prefix)
    maps: list[Tensor] = []

    def keep(mixer: nn.Module, inputs: tuple[object, ...], output: Tensor) -> None:
        assert isinstance(mixer, SelfAttention)
        maps.append(mixer.weights(*inputs)[0].mean(0).cpu().double())  # type: ignore[arg-type]

    with forward_hooks(mixers, keep):
        model.forward_features(image)
    for weights in reversed(maps):
        rollout = (rollout + rollout @ weights) / 2
    of_image = rollout[num_prefix:]
    return (of_image / of_image.mean()).float().unflatten(0, grid)


def occlusion_map(model: nn.Module, image: Images, class_index: int) -> Map:
    """Percentage points that a class loses where the image is the mean colour.

    Slides a square of two by two cells over the image, a cell at a time; each cell has
    the mean over the squares that cover it.
    """
    height, width = image.shape[-2:]
    rows, columns = cell_edges(height), cell_edges(width)
    squares = [
        (row, column)
        for row in range(-1, len(rows) - 1)
        for column in range(-1, len(columns) - 1)
    ]
    occluded = []
    for row, column in squares:
        copy = image[0].clone()
        copy[:, two_cells(rows, row), two_cells(columns, column)] = 0.0
        occluded.append(copy)
    probabilities = torch.cat(
        [
            model(torch.stack(occluded[start : start + BATCH_SIZE])).float().softmax(1)
            for start in range(0, len(occluded), BATCH_SIZE)
        ]
    )[:, class_index].cpu()
    whole = model(image).float().softmax(1)[0, class_index].cpu()
    lost = 100 * (whole - probabilities)
    total = torch.zeros(len(rows) - 1, len(columns) - 1)
    for (row, column), points in zip(squares, lost.tolist(), strict=True):
        total[max(row, 0) : row + 2, max(column, 0) : column + 2] += points
    return total / 4


def cell_edges(side: int) -> list[int]:
    """Pixel edges of the cells along a side; a short side has one cell per pixel."""
    num = min(NUM_CELLS, side)
    return [round(number * side / num) for number in range(num + 1)]


def two_cells(edges: list[int], cell: int) -> slice:
    """The pixels of a cell and the next one, within the image."""
    return slice(edges[max(cell, 0)], edges[min(cell + 2, len(edges) - 1)])


def pca_colours(tokens: FeatureMap) -> Colours:
    """The first three principal components of a token map, as red, green and blue."""
    rows = tokens[0].flatten(1).T.cpu().double()
    rows = rows - rows.mean(0)
    _, _, directions = torch.linalg.svd(rows, full_matrices=False)
    components = rows @ directions[:3].T
    # The sign of a component is arbitrary: the farthest token gets the bright end.
    farthest = components.gather(0, components.abs().argmax(0, keepdim=True))
    components = components * farthest.sign()
    low, high = components.amin(0), components.amax(0)
    colours = (components - low) / (high - low).clamp(min=1e-12)
    colours = torch.nn.functional.pad(colours, (0, 3 - colours.shape[1]))
    return colours.float().unflatten(0, tokens.shape[-2:])


@contextmanager
def forward_hooks(
    modules: Sequence[nn.Module], hook: Callable[..., None]
) -> Iterator[None]:
    """Registers a forward hook with each module until the context ends."""
    with ExitStack() as removal:
        for module in modules:
            removal.callback(module.register_forward_hook(hook).remove)
        yield
