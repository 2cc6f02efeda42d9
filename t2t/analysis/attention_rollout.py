"""What a model makes of an image: its tokens, where it looks, what its guess needs."""

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
"""Rows and columns that an image is cut into, to be hidden four cells at a time."""
MOST_TOKENS = 2048
"""Up to which an attention map, of their square, is computed."""
BATCH = 32

Map = Float[Tensor, "rows columns"]
Colours = Float[Tensor, "rows columns 3"]


@dataclass(frozen=True, kw_only=True)
class Sight:
    """What a model makes of one image."""

    tokens: tuple[tuple[str, Colours], ...]
    """Maps of tokens by what they are, alike where the colours are."""
    attention: Map | None
    """How much of the image's attention each token gets, times an equal share."""
    needs: Map
    """By how much the class's probability falls where a part is hidden, in points."""


@torch.no_grad()
def look(model: nn.Module, image: Images, index: int) -> Sight:
    """Follows one image, normalised, through a model; `index` is the guessed class.

    Tokens and attention are told of our transformers only.
    """
    tokens: list[tuple[str, Colours]] = []
    attention = None
    if isinstance(model, VisionTransformer):
        tokens = [(name, colours(found)) for name, found in token_maps(model, image)]
        attention = attention_of_all(model, image)
    return Sight(
        tokens=tuple(tokens),
        attention=attention,
        needs=what_it_needs(model, image, index),
    )


def token_maps(model: VisionTransformer, image: Images) -> list[tuple[str, FeatureMap]]:
    """The tokens after each split and after the last block, where they lie."""
    found: list[FeatureMap] = []

    def keep(part: nn.Module, inputs: object, output: FeatureMap) -> None:
        found.append(output)

    steps = getattr(model.tokenizer, "steps", ())
    with listening([*steps, model.tokenizer], keep):
        tokens = model.forward_features(image)[:, model.config.num_prefix_tokens :]
    last = tokens.transpose(1, 2).unflatten(2, found[-1].shape[-2:])
    several = len(found) > 1
    names = [f"after split {number + 1}" for number in range(len(found))]
    names = names if several else ["as they enter the blocks"]
    return [*zip(names, found, strict=True), ("after the last block", last)]


def attention_of_all(model: VisionTransformer, image: Images) -> Map | None:
    """What the head reads, traced back through the attention of all blocks.

    Half of every block's output is taken for its input, which its skip passes on, and
    heads count alike. None where there are too many tokens, or keys are mixed.
    """
    grid = model.tokenizer.grids((image.shape[-2], image.shape[-1]))[-1]
    num_prefix = model.config.num_prefix_tokens
    num = num_prefix + grid[0] * grid[1]
    mixers = [part for part in model.modules() if isinstance(part, SelfAttention)]
    if num > MOST_TOKENS or any(mixer.shorten is not None for mixer in mixers):
        return None
    read = torch.zeros(num, dtype=torch.float64)
    if model.config.pool == "class":  # and the distillation token beside it
        read[:num_prefix] = 1 / num_prefix
    else:
        read[num_prefix:] = 1 / (num - num_prefix)
    maps: list[Tensor] = []

    def keep(mixer: nn.Module, inputs: tuple[object, ...], output: Tensor) -> None:
        assert isinstance(mixer, SelfAttention)
        maps.append(mixer.weights(*inputs)[0].mean(0).cpu().double())  # type: ignore[arg-type]

    with listening(mixers, keep):
        model.forward_features(image)
    for weights in reversed(maps):
        read = (read + read @ weights) / 2
    shown = read[num_prefix:]
    return (shown / shown.mean()).float().unflatten(0, grid)


def what_it_needs(model: nn.Module, image: Images, index: int) -> Map:
    """Points that a class loses where a part of the image is the mean colour.

    Squares of two by two cells are hidden, by steps of a cell; a cell is told the mean
    of those that hide it.
    """
    height, width = image.shape[-2:]
    rows, columns = edges(height), edges(width)
    places = [
        (row, column)
        for row in range(-1, len(rows) - 1)
        for column in range(-1, len(columns) - 1)
    ]
    hidden = []
    for row, column in places:
        part = image[0].clone()
        part[:, span(rows, row), span(columns, column)] = 0.0
        hidden.append(part)
    shares = torch.cat(
        [
            model(torch.stack(hidden[start : start + BATCH])).float().softmax(1)
            for start in range(0, len(hidden), BATCH)
        ]
    )[:, index].cpu()
    lost = 100 * (model(image).float().softmax(1)[0, index].cpu() - shares)
    total = torch.zeros(len(rows) - 1, len(columns) - 1)
    for (row, column), points in zip(places, lost.tolist(), strict=True):
        total[max(row, 0) : row + 2, max(column, 0) : column + 2] += points
    return total / 4


def edges(side: int) -> list[int]:
    """Where the cells of a side begin and end; of a short one each pixel is a cell."""
    num = min(NUM_CELLS, side)
    return [round(number * side / num) for number in range(num + 1)]


def span(borders: list[int], cell: int) -> slice:
    """The pixels of a cell and the next, as far as they are there."""
    return slice(borders[max(cell, 0)], borders[min(cell + 2, len(borders) - 1)])


def colours(tokens: FeatureMap) -> Colours:
    """A token map's three main directions as red, green and blue."""
    rows = tokens[0].flatten(1).T.cpu().double()
    rows = rows - rows.mean(0)
    _, _, directions = torch.linalg.svd(rows, full_matrices=False)
    main = rows @ directions[:3].T
    # A direction and its opposite are as good: the farthest token has the bright end.
    farthest = main.gather(0, main.abs().argmax(0, keepdim=True))
    main = main * farthest.sign()
    low, high = main.amin(0), main.amax(0)
    shown = (main - low) / (high - low).clamp(min=1e-12)
    shown = torch.nn.functional.pad(shown, (0, 3 - shown.shape[1]))
    return shown.float().unflatten(0, tokens.shape[-2:])


@contextmanager
def listening(parts: Sequence[nn.Module], hear: Callable[..., None]) -> Iterator[None]:
    """Calls a function with what modules are given and give, until the end."""
    with ExitStack() as ending:
        for part in parts:
            ending.callback(part.register_forward_hook(hear).remove)
        yield
