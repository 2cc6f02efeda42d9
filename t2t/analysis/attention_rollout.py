"""Evidence for a prediction: token maps, attention rollout and occlusion."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from t2t.analysis.attention_maps import (
    Map,
    attention_maps,
    forward_hooks,
    has_rollout,
    num_tokens_read,
    rollout,
)
from t2t.models.vit import VisionTransformer
from t2t.shapes import FeatureMap, Images

NUM_CELLS = 8
"""Rows and columns of the occlusion map."""
BATCH_SIZE = 32

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
def explain(
    model: nn.Module, image: Images, class_index: int, *, multilabel: bool = False
) -> Explanation:
    """The evidence in one normalised image for a class.

    `multilabel`: the model predicts several labels per image.
    Token maps exist for our transformers only, attention for timm's ViTs too.
    """
    tokens: list[tuple[str, Colours]] = []
    if isinstance(model, VisionTransformer):
        maps = token_maps(model, image)
        tokens = [(name, pca_colours(features)) for name, features in maps]
    return Explanation(
        tokens=tuple(tokens),
        attention=attention_rollout(model, image),
        occlusion=occlusion_map(model, image, class_index, multilabel=multilabel),
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


def attention_rollout(model: nn.Module, image: Images) -> Map | None:
    """Attention from the head's input back to the tokens, through all blocks.

    None where a block has no map, or a map over other tokens than the rest.
    """
    layers = attention_maps(model, image, average_heads=True)
    if not has_rollout(layers, model):
        return None
    return rollout(layers, num_read=num_tokens_read(model))


def occlusion_map(
    model: nn.Module, image: Images, class_index: int, *, multilabel: bool = False
) -> Map:
    """Percentage points that a class loses where the image is the mean colour."""

    def probability(images: Images) -> Tensor:
        logits = model(images).float()
        probabilities = logits.sigmoid() if multilabel else logits.softmax(1)
        return probabilities[:, class_index].cpu()

    occlusion = Occlusion(image)
    num = len(occlusion.squares)
    probabilities = torch.cat(
        [
            probability(occlusion.hidden(start, start + BATCH_SIZE))
            for start in range(0, num, BATCH_SIZE)
        ]
    )
    return occlusion.map((100 * (probability(image) - probabilities)).tolist())


class Occlusion:
    """The parts of an image that are hidden one after the other.

    A square of two by two cells slides over the image, a cell at a time; each cell has
    the mean over the squares that cover it.
    """

    def __init__(self, image: Images) -> None:
        self.image = image[0]
        height, width = image.shape[-2:]
        self.rows, self.columns = cell_edges(height), cell_edges(width)
        self.squares = [
            (row, column)
            for row in range(-1, len(self.rows) - 1)
            for column in range(-1, len(self.columns) - 1)
        ]

    def hidden(self, start: int, end: int) -> Images:
        """Copies of the image, each with one of these squares in the mean colour."""
        copies = []
        for row, column in self.squares[start:end]:
            copy = self.image.clone()
            copy[:, two_cells(self.rows, row), two_cells(self.columns, column)] = 0.0
            copies.append(copy)
        return torch.stack(copies)

    def map(self, lost: Sequence[float]) -> Map:
        """What hiding each cell costs, from what hiding each square costs."""
        total = torch.zeros(len(self.rows) - 1, len(self.columns) - 1)
        for (row, column), points in zip(self.squares, lost, strict=True):
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
