"""Attention maps of a model's layers for one image, and their rollout."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from t2t.errors import UserError
from t2t.models.layers import SelfAttention
from t2t.models.token_grid import Grid, guess_grid
from t2t.models.tokenizers import TokensToToken, TokenTransformer
from t2t.models.vit import VisionTransformer
from t2t.shapes import Images

Map = Float[Tensor, "rows columns"]

MAX_LAYER_WEIGHTS = 2**26
"""Weights of one layer, all heads; with more, its map is left out."""
MAX_WEIGHTS = 2**27
"""Weights of all layers together: half a gigabyte."""


@dataclass(frozen=True, kw_only=True)
class AttentionLayer:
    """The attention map of one layer for one image; each row sums to 1."""

    name: str
    """Such as `block 3` or `token transformer 1`, counted from 1."""
    grid: Grid
    """Rows and columns of the tokens."""
    num_prefix: int
    """Class and distillation tokens, which come before those of the image."""
    weights: Float[Tensor, "heads queries keys"]
    """In float32, on the CPU."""
    is_block: bool = True
    """False for a token transformer of a T2T tokenizer."""


@dataclass
class Collector:
    """Attention maps as hooks find them."""

    average_heads: bool
    layers: list[AttentionLayer] = field(default_factory=list)
    num_weights: int = 0
    too_large: list[str] = field(default_factory=list)

    def has_room(self, name: str, num_heads: int, num_tokens: int) -> bool:
        """Whether a map may be computed; notes the name if not."""
        whole = num_heads * num_tokens**2
        kept = num_tokens**2 if self.average_heads else whole
        room = whole <= MAX_LAYER_WEIGHTS and self.num_weights + kept <= MAX_WEIGHTS
        if room:
            self.num_weights += kept
        else:
            self.too_large.append(name)
        return room

    def add(
        self,
        name: str,
        grid: Grid,
        num_prefix: int,
        weights: Float[Tensor, "heads queries keys"],
        is_block: bool = True,
    ) -> None:
        """Keeps a map if its queries and keys are the tokens of the grid."""
        num_tokens = num_prefix + grid[0] * grid[1]
        if weights.shape[1:] != (num_tokens, num_tokens):
            return
        weights = weights.float()
        if self.average_heads:
            weights = weights.mean(0, keepdim=True)
        self.layers.append(
            AttentionLayer(
                name=name,
                grid=grid,
                num_prefix=num_prefix,
                weights=weights.cpu(),
                is_block=is_block,
            )
        )


def attention_maps(
    model: nn.Module,
    image: Images,
    *,
    token_transformers: bool = False,
    average_heads: bool = False,
) -> list[AttentionLayer]:
    """The attention maps of one normalised image, layer by layer.

    Layers without a map from token to token are left out: Linformer's, windows, other
    mixers, and maps that are too large.
    """
    return attention_maps_with_notes(
        model,
        image,
        token_transformers=token_transformers,
        average_heads=average_heads,
    )[0]


@torch.no_grad()
def attention_maps_with_notes(
    model: nn.Module,
    image: Images,
    *,
    token_transformers: bool = False,
    average_heads: bool = False,
) -> tuple[list[AttentionLayer], list[str]]:
    """The same, and a sentence for everything that is left out."""
    if len(image) != 1:
        raise UserError(
            f"Attention is shown for one image, but {len(image)} are given."
        )
    found = Collector(average_heads)
    if isinstance(model, VisionTransformer):
        collect_own(model, image, found, token_transformers)
    else:
        collect_timm(model, image, found)
    return found.layers, notes_on(model, found)


def notes_on(model: nn.Module, found: Collector) -> list[str]:
    """A sentence for each kind of layer that has no map."""
    notes = []
    if found.too_large:
        first, *others = found.too_large
        those = f"{first} and {len(others)} more" if others else first
        notes.append(
            f"Attention maps of {those} are left out: their size is the square of the "
            "number of tokens; choose a smaller image size to see them."
        )
    num_blocks = num_attention_blocks(model)
    num_found = sum(layer.is_block for layer in found.layers)
    num_large = sum(name.startswith("block") for name in found.too_large)
    missing = num_blocks - num_found - num_large
    if not num_blocks:
        notes.append(
            "It has no attention map over all tokens: it is a CNN, or its attention "
            "looks at windows or channels."
        )
    elif missing > 0:
        notes.append(
            f"{missing} of {num_blocks} blocks have no attention map from token to "
            "token: they mix keys, look at windows, or do not use attention."
        )
    return notes


def num_attention_blocks(model: nn.Module) -> int:
    """The number of blocks whose maps a rollout needs; 0 for a CNN."""
    if isinstance(model, VisionTransformer):
        return len(model.encoder.blocks)
    return len(timm_attentions(model))


def collect_own(
    model: VisionTransformer, image: Images, found: Collector, token_transformers: bool
) -> None:
    """Runs one of our models and collects its maps."""
    num_prefix = model.config.num_prefix_tokens
    names = {
        part: f"block {number}"
        for number, block in enumerate(model.encoder.blocks, 1)
        for part in block.modules()
        if isinstance(part, SelfAttention)
    }

    def keep(mixer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        assert isinstance(mixer, SelfAttention)
        tokens, grid, *_ = inputs
        if mixer.shorten is None and found.has_room(
            names[mixer], mixer.num_heads, tokens.shape[1]
        ):
            found.add(names[mixer], grid, num_prefix, mixer.weights(*inputs)[0])

    steps: dict[nn.Module, str] = {}
    if token_transformers and isinstance(model.tokenizer, TokensToToken):
        steps = {
            step: f"token transformer {number}"
            for number, step in enumerate(model.tokenizer.steps, 1)
        }

    def keep_step(step: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        assert isinstance(step, TokenTransformer)
        grid = (output.shape[-2], output.shape[-1])
        if found.has_room(steps[step], 1, grid[0] * grid[1]):
            weights = step.weights(*inputs)
            if weights is not None:
                found.add(steps[step], grid, 0, weights[0], is_block=False)

    with forward_hooks([*steps], keep_step), forward_hooks([*names], keep):
        model.forward_features(image)


def timm_attentions(model: nn.Module) -> dict[nn.Module, str]:
    """The self-attention modules of a timm ViT and the names of their blocks."""
    blocks = getattr(model, "blocks", None)
    if not isinstance(blocks, nn.Sequential | nn.ModuleList):
        return {}
    return {
        part: f"block {number}"
        for number, block in enumerate(blocks, 1)
        for part in block.modules()
        if hasattr(part, "fused_attn")
        and isinstance(getattr(part, "attn_drop", None), nn.Module)
        and hasattr(part, "num_heads")
    }


def collect_timm(model: nn.Module, image: Images, found: Collector) -> None:
    """Runs a timm model and collects the maps of its attention modules.

    Fused attention stores no map, so modules compute theirs explicitly meanwhile; the
    map is what enters their dropout.
    """
    names = timm_attentions(model)
    num_prefix = int(getattr(model, "num_prefix_tokens", 0) or 0)
    likely = timm_grid(model, image)
    owners: dict[nn.Module, nn.Module] = {
        cast(nn.Module, part.attn_drop): part for part in names
    }

    def explicit(part: Any, inputs: tuple[Any, ...]) -> None:
        tokens = inputs[0]
        room = tokens.ndim == 3 and found.has_room(
            names[part], part.num_heads, tokens.shape[1]
        )
        part.fused_attn = part.fused_attn and not room

    def keep(dropout: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        weights = inputs[0]
        name = names[owners[dropout]]
        if name in found.too_large or weights.ndim != 4 or len(weights) != 1:
            return
        grid = guess_grid(weights.shape[-1] - num_prefix, likely)
        if grid is not None:
            found.add(name, grid, num_prefix, weights[0])

    with ExitStack() as restoring:
        for part in names:
            fused = part.fused_attn
            restoring.callback(setattr, part, "fused_attn", fused)
            hook = part.register_forward_pre_hook(explicit)
            restoring.callback(hook.remove)
        restoring.enter_context(forward_hooks([*owners], keep))
        model(image)


def timm_grid(model: nn.Module, image: Images) -> Grid:
    """The token grid of a timm model for an image, by its stem's patches."""
    stem: Any = getattr(model, "patch_embed", None)
    height, width = image.shape[-2], image.shape[-1]
    if hasattr(stem, "dynamic_feat_size"):
        rows, columns = stem.dynamic_feat_size((height, width))
        return int(rows), int(columns)
    grid = getattr(stem, "grid_size", None)
    return (int(grid[0]), int(grid[1])) if grid else (height, width)


@contextmanager
def forward_hooks(
    modules: Sequence[nn.Module], hook: Callable[..., None]
) -> Iterator[None]:
    """Registers a forward hook with each module until the context ends."""
    with ExitStack() as removal:
        for module in modules:
            removal.callback(module.register_forward_hook(hook).remove)
        yield
