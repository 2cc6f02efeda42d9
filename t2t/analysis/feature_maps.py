"""Feature maps of a model's layers for one image, and statistics of their channels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from t2t.analysis.attention_maps import forward_hooks, timm_grid
from t2t.errors import UserError
from t2t.models.token_grid import Grid, guess_grid
from t2t.models.tokenizers import ConvolutionTokens, Patches, TokensToToken
from t2t.models.vit import VisionTransformer
from t2t.shapes import Images

DEAD_BELOW = 0.01
"""A channel is dead if it varies at most this much, relative to the median channel."""
OUTSIZED_ABOVE = 10.0
"""A channel is outsized if its RMS is this many times that of the median channel."""


@dataclass(frozen=True, kw_only=True)
class FeatureLayer:
    """The output of one layer for one image, as a map; on the CPU, in float32."""

    name: str
    """Such as `split 1`, `block 3` or `stage 2`, counted from 1."""
    values: Float[Tensor, "channels rows columns"]
    prefix: Float[Tensor, "prefix channels"]
    """Class and distillation tokens; empty where there are none."""

    @property
    def grid(self) -> Grid:
        """Rows and columns."""
        return self.values.shape[1], self.values.shape[2]


@torch.no_grad()
def feature_layers(model: nn.Module, image: Images) -> list[FeatureLayer]:
    """The output of every layer for one normalised image.

    Of our transformers these are the splits of the tokenizer and the blocks; of timm's
    the patch embedding and the blocks; of other networks of timm the stages. Blocks
    give their tokens before any norm: the residual stream.
    """
    found = hooked_layers(model, image)
    if any(each.name.startswith("block") for each in found):
        return found
    return stages(model, image)


def stages(model: nn.Module, image: Images) -> list[FeatureLayer]:
    """The feature maps of a timm network that has stages."""
    if not hasattr(model, "forward_intermediates"):
        raise UserError(
            f"{type(model).__name__} gives no feature maps: timm has no "
            "forward_intermediates for it; choose another model."
        )
    given: Any = model.forward_intermediates
    maps = given(image, intermediates_only=True)
    found: list[FeatureLayer] = []
    for number, features in enumerate(maps, 1):
        add_map(found, f"stage {number}", features)
    return found


def hooked_layers(model: nn.Module, image: Images) -> list[FeatureLayer]:
    """The outputs of the layers; empty for networks with stages."""
    names = layer_names(model)
    if not names:
        return []
    found: list[FeatureLayer] = []
    num_prefix = int(getattr(model, "num_prefix_tokens", 0) or 0)
    is_ours = isinstance(model, VisionTransformer)
    near: list[Grid] = [] if is_ours else [timm_grid(model, image)]

    def keep(part: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.ndim == 4:
            # timm's patches have their channels last if the image size is free.
            add_map(found, names[part], output if is_ours else output.movedim(3, 1))
            near[:] = [found[-1].grid]
        elif isinstance(output, Tensor) and output.ndim == 3:
            # Our blocks are given their grid, which a pyramid changes.
            grid = inputs[1] if is_ours else near[-1]
            add_tokens(found, names[part], output, num_prefix, grid)

    with forward_hooks([*names], keep):
        if isinstance(model, VisionTransformer):
            model.forward_features(image)
        else:
            model(image)
    return found


def layer_names(model: nn.Module) -> dict[nn.Module, str]:
    """The modules whose outputs are a transformer's layers; empty for other models."""
    if isinstance(model, VisionTransformer):
        names = split_names(model)
        blocks: Any = model.encoder.blocks
    else:
        blocks = getattr(model, "blocks", None)
        if not hasattr(model, "num_prefix_tokens") or blocks is None:
            return {}
        names = {model.patch_embed: "patches"}  # type: ignore[dict-item]
    return names | {block: f"block {number}" for number, block in enumerate(blocks, 1)}


def split_names(model: VisionTransformer) -> dict[nn.Module, str]:
    """The modules whose outputs are the tokens after each split of the image."""
    tokenizer = model.tokenizer
    if isinstance(tokenizer, TokensToToken):
        parts = [*tokenizer.steps, tokenizer]
    elif isinstance(tokenizer, ConvolutionTokens):
        parts = [*tokenizer.convolutions]
    else:
        name = "patches" if isinstance(tokenizer, Patches) else "tokens"
        return {tokenizer: name}
    return {part: f"split {number}" for number, part in enumerate(parts, 1)}


def add_map(found: list[FeatureLayer], name: str, features: Tensor) -> None:
    """Adds a feature map (batch, channels, rows, columns)."""
    values = features[0].float().cpu()
    found.append(
        FeatureLayer(name=name, values=values, prefix=values.new_zeros(0, len(values)))
    )


def add_tokens(
    found: list[FeatureLayer], name: str, tokens: Tensor, num_prefix: int, near: Grid
) -> None:
    """Adds tokens (batch, tokens, channels) if they lie on a grid."""
    rows = tokens[0].float().cpu()
    has_prefix = name != "patches"  # timm adds the class token after the patches
    num_prefix = num_prefix if has_prefix else 0
    grid = guess_grid(len(rows) - num_prefix, near)
    if grid is not None:
        values = rows[num_prefix:].T.unflatten(1, grid).contiguous()
        prefix = rows[:num_prefix]
        found.append(FeatureLayer(name=name, values=values, prefix=prefix))


@dataclass(frozen=True, kw_only=True)
class ChannelStatistics:
    """How much the channels of one layer vary, over all positions of all images."""

    name: str
    std: Float[Tensor, " channels"]
    rms: Float[Tensor, " channels"]
    """Root mean square of the values of each channel."""

    @property
    def dead(self) -> Bool[Tensor, " channels"]:
        """Channels that hardly vary: see `DEAD_BELOW`."""
        return self.std <= DEAD_BELOW * self.std.quantile(0.5)

    @property
    def outsized(self) -> Bool[Tensor, " channels"]:
        """Channels of values that are too large: see `OUTSIZED_ABOVE`."""
        return self.rms > OUTSIZED_ABOVE * self.rms.quantile(0.5)

    @property
    def unit(self) -> Float[Tensor, ""]:
        """The standard deviation of the median channel.

        Where more than half of the channels are constant, that of the most varying one.
        """
        median = self.std.quantile(0.5)
        return (median if median > 0 else self.std.max()).clamp(min=1e-30)

    @property
    def relative_std(self) -> Float[Tensor, " channels"]:
        """The standard deviation in this unit."""
        return self.std / self.unit


@dataclass(frozen=True, kw_only=True)
class TokenNorms:
    """The lengths of one layer's tokens (L2 norms), over all images."""

    name: str
    mean: float
    low: float
    """The 5th percentile."""
    high: float
    """The 95th percentile."""
    prefix: tuple[float, ...]
    """The mean norm of each class or distillation token."""


class LayerStatistics:
    """Running statistics of all layers over the images seen so far."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[int, Tensor, Tensor]] = {}
        self._norms: dict[str, list[Tensor]] = {}
        self._prefix_norms: dict[str, list[Tensor]] = {}

    def add(self, layers: Sequence[FeatureLayer]) -> None:
        """Adds the layers of one image."""
        for layer in layers:
            values = layer.values.flatten(1).double()
            zeros = torch.zeros(len(values), dtype=torch.float64)
            num, total, squares = self._sums.get(layer.name, (0, zeros, zeros))
            self._sums[layer.name] = (
                num + values.shape[1],
                total + values.sum(1),
                squares + values.square().sum(1),
            )
            self._norms.setdefault(layer.name, []).append(values.norm(dim=0))
            prefix = layer.prefix.norm(dim=1)
            self._prefix_norms.setdefault(layer.name, []).append(prefix)

    def channels(self) -> tuple[ChannelStatistics, ...]:
        """The statistics of the channels of every layer with two positions or more."""
        found = []
        for name, (num, total, squares) in self._sums.items():
            mean, mean_square = total / num, squares / num
            variance = (mean_square - mean.square()).clamp(min=0)
            # Rounding of the sums is not variation.
            variance[variance < 1e-12 * mean_square] = 0
            if num > 1:
                std, rms = variance.sqrt().float(), mean_square.sqrt().float()
                found.append(ChannelStatistics(name=name, std=std, rms=rms))
        return tuple(found)

    def norms(self) -> tuple[TokenNorms, ...]:
        """The norms of the tokens of every layer."""
        found = []
        for name, of_images in self._norms.items():
            norms = torch.cat(of_images).numpy()
            low, high = np.percentile(norms, [5, 95])
            prefix = torch.stack(self._prefix_norms[name]).mean(0)
            found.append(
                TokenNorms(
                    name=name,
                    mean=float(norms.mean()),
                    low=float(low),
                    high=float(high),
                    prefix=tuple(prefix.tolist()),
                )
            )
        return tuple(found)
