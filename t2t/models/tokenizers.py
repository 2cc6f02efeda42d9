"""Images to tokens: hard patches, soft splits, convolutions or a CNN."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from t2t.errors import UserError
from t2t.models.config import ModelConfig
from t2t.models.fusion import are_plain, is_fused, softmax_weights, step_weights
from t2t.models.hooks import is_hooked
from t2t.models.layers import AttentionMap, Mlp
from t2t.models.token_grid import Grid
from t2t.ops.performer import performer_attention, performer_weights
from t2t.ops.performer_step import has_kernel, performer_step
from t2t.ops.soft_split import Split, soft_split, split_by, split_grids
from t2t.ops.softmax_step import softmax_step
from t2t.ops.window_projection import Moments
from t2t.registry import Registry
from t2t.shapes import FeatureMap, Images, Tokens


class TokenTransformer(nn.Module, ABC):
    """One tokens-to-token step: a soft split, then attention among the new tokens.

    The skip connection adds the values, since the split tokens have another width.
    """

    qkv_bias: bool

    def __init__(
        self, in_channels: int, split: Split, dim: int, eps: float, dropout: float
    ) -> None:
        super().__init__()
        self.split = split
        self.window_dim = in_channels * split.kernel**2
        self.norm1 = nn.LayerNorm(self.window_dim, eps=eps)
        self.qkv = nn.Linear(self.window_dim, 3 * dim, bias=self.qkv_bias)
        self.proj = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim, eps=eps)
        self.mlp = Mlp(nn.Sequential(nn.Linear(dim, dim), nn.GELU()), dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, image: FeatureMap) -> FeatureMap:
        qkv = split_and_project(image, self.split, self.norm1, self.qkv)
        mixed, value = self.attend(qkv.flatten(2).transpose(1, 2))
        tokens = value + self.dropout(self.proj(mixed))
        tokens = tokens + self.dropout(self.mlp(self.norm2(tokens)))
        return tokens.transpose(1, 2).unflatten(2, qkv.shape[-2:])

    def weights(self, image: FeatureMap) -> AttentionMap | None:
        """The attention map, which `forward` does not store; None if it has none."""
        qkv = split_and_project(image, self.split, self.norm1, self.qkv)
        return self.attention_map(qkv.flatten(2).transpose(1, 2))

    def attention_map(self, projected: Tokens) -> AttentionMap | None:
        """The attention map for projected tokens, of one head."""
        return None

    def fused(
        self, image: FeatureMap, moments: Moments | None
    ) -> tuple[FeatureMap, Moments | None] | None:
        """The output of `forward` by fused operations, and its channels' moments."""
        return None

    @abstractmethod
    def attend(self, projected: Tokens) -> tuple[Tokens, Tokens]:
        """The output of attention for projected tokens, and their values."""


class SoftmaxTokenTransformer(TokenTransformer):
    """Token transformer with softmax attention in one head."""

    qkv_bias = False

    def fused(
        self, image: FeatureMap, moments: Moments | None
    ) -> tuple[FeatureMap, Moments | None] | None:
        weights = softmax_weights(self) if is_fused(image) else None
        if weights is None or (self.training and self.dropout.p > 0):
            return None
        return softmax_step(image, self.split, weights, self.norm1.eps), None

    def attend(self, projected: Tokens) -> tuple[Tokens, Tokens]:
        # Fused attention needs the channels of a token to be contiguous.
        query, key, value = projected.contiguous().chunk(3, dim=-1)
        # As published: scaled by the width of the window, not of the head.
        mixed = F.scaled_dot_product_attention(
            query.unsqueeze(1),
            key.unsqueeze(1),
            value.unsqueeze(1),
            scale=self.window_dim**-0.5,
        )
        return mixed.squeeze(1), value

    def attention_map(self, projected: Tokens) -> AttentionMap:
        query, key, _ = projected.chunk(3, dim=-1)
        logits = query @ key.transpose(1, 2) * self.window_dim**-0.5
        return logits.softmax(dim=-1).unsqueeze(1)


class PerformerTokenTransformer(TokenTransformer):
    """Token transformer with Performer attention, linear in the number of tokens."""

    qkv_bias = True

    def __init__(
        self, in_channels: int, split: Split, dim: int, eps: float, dropout: float
    ) -> None:
        super().__init__(in_channels, split, dim, eps, dropout)
        num_features = dim // 2
        features = torch.empty(num_features, dim)
        # On a meta device this would import the compiler, which takes seconds.
        if not features.is_meta:
            features = nn.init.orthogonal_(features) * num_features**0.5
        self.register_buffer("features", features)
        self.features: Tensor

    def fused(
        self, image: FeatureMap, moments: Moments | None
    ) -> tuple[FeatureMap, Moments | None] | None:
        weights = step_weights(self) if is_fused(image) else None
        if weights is None or not has_kernel(image, weights):
            return None
        drop_rate = self.dropout.p if self.training else 0.0
        seed = torch.zeros((), dtype=torch.int64, device=image.device)
        if drop_rate:
            seed = seed.random_(2**31)
        return performer_step(
            image, moments, self.split, weights, seed, drop_rate, self.norm1.eps
        )

    def attend(self, projected: Tokens) -> tuple[Tokens, Tokens]:
        # As published: keys come first.
        key, query, value = projected.chunk(3, dim=-1)
        return performer_attention(query, key, value, self.features), value

    def attention_map(self, projected: Tokens) -> AttentionMap:
        key, query, _ = projected.chunk(3, dim=-1)
        return performer_weights(query, key, self.features).unsqueeze(1)


class Tokenizer(nn.Module):
    """Images to a map of tokens, (batch, dim, rows, columns).

    `splits` gives (kernel, stride, padding) of each stage, which give the token grid
    of any image size; a tokenizer with another rule overrides `grids`.
    """

    def __init__(self, splits: Iterable[tuple[int, int, int]]) -> None:
        super().__init__()
        self.splits = tuple(Split(*numbers) for numbers in splits)
        if not self.splits:
            raise UserError(
                f"{type(self).__name__} has no splits: give the (kernel, stride, "
                "padding) of each stage, such as [(3, 2, 1)]."
            )

    def grids(self, image_size: Grid) -> list[Grid]:
        """The token grid after each stage."""
        return split_grids(image_size, self.splits)

    def without_bias(self, images: Images) -> tuple[FeatureMap, Tensor | None]:
        """The tokens, and a bias that is still to be added to them, if there is one."""
        return self(images), None


class TokensToToken(Tokenizer):
    """Soft splits with a token transformer after each but the last."""

    def __init__(self, config: ModelConfig, step: type[TokenTransformer]) -> None:
        super().__init__(config.splits)
        channels = [config.in_channels] + [config.token_dim] * (len(self.splits) - 1)
        self.steps = nn.ModuleList(
            step(
                in_channels,
                split,
                config.token_dim,
                config.norm_eps,
                config.token_dropout,
            )
            for in_channels, split in zip(channels[:-1], self.splits[:-1], strict=True)
        )
        self.project = nn.Linear(channels[-1] * self.splits[-1].kernel ** 2, config.dim)

    def forward(self, images: Images) -> FeatureMap:
        images = self.stepwise(images)
        return split_and_project(images, self.splits[-1], None, self.project)

    def without_bias(self, images: Images) -> tuple[FeatureMap, Tensor | None]:
        is_own = type(self) is TokensToToken and not is_hooked(self)
        if not is_own or not is_fused(images) or not are_plain([self.project]):
            return self(images), None
        images = self.stepwise(images)
        split, weight = self.splits[-1], self.project.weight
        return soft_split(images, split, None, weight, None), self.project.bias

    def stepwise(self, images: Images) -> FeatureMap:
        """The tokens after all steps."""
        moments = None
        for step in self.steps:
            assert isinstance(step, TokenTransformer)
            fused = step.fused(images, moments)
            images, moments = (step(images), None) if fused is None else fused
        return images


def split_and_project(
    image: FeatureMap, split: Split, norm: Any, linear: Any
) -> FeatureMap:
    """A soft split by two layers, fused if they are plain."""
    is_affine = type(norm) is nn.LayerNorm and norm.bias is not None
    if type(linear) is nn.Linear and (norm is None or is_affine):
        gain = None if norm is None else (norm.weight, norm.bias, norm.eps)
        return soft_split(image, split, gain, linear.weight, linear.bias)
    parts = linear if norm is None else lambda windows: linear(norm(windows))
    return split_by(parts, image, split)


class ConvolutionTokens(Tokenizer):
    """A convolution for every soft split, without activations, as published."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config.splits)
        widths = [config.in_channels]
        widths += [config.token_dim] * (len(self.splits) - 1) + [config.dim]
        self.convolutions = nn.Sequential(
            *(
                nn.Conv2d(width, out, split.kernel, split.stride, split.padding)
                for width, out, split in zip(
                    widths[:-1], widths[1:], self.splits, strict=True
                )
            )
        )

    def forward(self, images: Images) -> FeatureMap:
        return self.convolutions(images)


class Patches(Tokenizer):
    """Patches without overlap, each through one linear layer."""

    def __init__(self, config: ModelConfig) -> None:
        side = config.patch_size
        super().__init__([(side, side, 0)])
        self.project = nn.Conv2d(config.in_channels, config.dim, side, side)

    def forward(self, images: Images) -> FeatureMap:
        return self.project(images)


class HybridTokens(Tokenizer):
    """The stride-16 features of a CNN, each through one linear layer."""

    def __init__(self, config: ModelConfig) -> None:
        import timm  # slow to import, and needed here only

        # A ResNet up to stride 16 halves four times, each time rounding up.
        super().__init__([(1, 2, 0)] * 4)
        if not timm.is_model(config.stem):  # timm would download a URL
            raise UserError(f"stem={config.stem!r} is not a model of timm.")
        try:
            self.stem = timm.create_model(
                config.stem,
                features_only=True,
                out_indices=(3,),
                in_chans=config.in_channels,
            )
        except RuntimeError as error:
            raise UserError(
                f"stem={config.stem!r} is not a timm network that gives features: "
                f"{error}."
            ) from error
        (channels,), (reduction,) = (
            self.stem.feature_info.channels(),
            self.stem.feature_info.reduction(),
        )
        if reduction != 16:
            raise UserError(
                f"stem={config.stem!r} has no features at stride 16 (its fourth stage "
                f"is at stride {reduction}); choose a ResNet."
            )
        self.project = nn.Conv2d(channels, config.dim, 1)

    def forward(self, images: Images) -> FeatureMap:
        return self.project(self.stem(images)[0])


TOKENIZERS: Registry[Callable[[ModelConfig], Tokenizer]] = Registry(
    "tokenizer",
    {
        "patch": Patches,
        "t2t": lambda config: TokensToToken(config, SoftmaxTokenTransformer),
        "t2t_performer": lambda config: TokensToToken(
            config, PerformerTokenTransformer
        ),
        "t2t_conv": ConvolutionTokens,
        "hybrid": HybridTokens,
    },
)
register_tokenizer = TOKENIZERS.register
