"""The one model: images → tokenizer → + positions → blocks → head."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from t2t.errors import UserError, choose
from t2t.models.config import MAX_TOKENS, ModelConfig
from t2t.models.encoders import Encoder
from t2t.models.hooks import is_hooked, is_traced
from t2t.models.timm_support.interface import TimmInterface
from t2t.models.timm_support.tracing import traced
from t2t.models.token_grid import Grid
from t2t.models.tokenizers import TOKENIZERS, Tokenizer
from t2t.ops.embedding import TokenParts
from t2t.registry import check_methods
from t2t.shapes import FeatureMap, Images, Logits, Tokens

POOLS: dict[str, Callable[[Tokens, int], Tensor]] = {
    "class": lambda tokens, num_prefix: tokens[:, 0],
    "mean": lambda tokens, num_prefix: tokens[:, num_prefix:].mean(dim=1),
    "none": lambda tokens, num_prefix: tokens,
}


class VisionTransformer(TimmInterface, nn.Module):
    """A vision transformer, built from its config."""

    def __init__(self, config: ModelConfig, awaits_weights: bool = False) -> None:
        super().__init__()
        check_head(config)
        self.config = config
        self.tokenizer = TOKENIZERS.build(config.tokenizer, Tokenizer, config)
        self.user_tokenizer = TOKENIZERS.user_choice(config.tokenizer)
        if self.user_tokenizer:
            check_methods(self.user_tokenizer, type(self.tokenizer), Tokenizer)
        grid = self.tokenizer.grids(config.image_size)[-1]
        check_tokens(config, grid)
        self.prefix = None
        if config.num_prefix_tokens:
            prefix = torch.zeros(1, config.num_prefix_tokens, config.dim)
            self.prefix = nn.Parameter(nn.init.trunc_normal_(prefix, std=0.02))
        self.encoder = Encoder(grid, config)
        self.norm: nn.Module = nn.LayerNorm(self.encoder.out_dim, eps=config.norm_eps)
        self.head = self.new_head(config.num_classes)
        self.distillation_head = None
        if config.distilled:
            self.distillation_head = self.new_head(config.num_classes)
        # Weights from a file replace all but the heads, and drawing random ones takes
        # longer than reading them.
        for part in (self.head, self.distillation_head) if awaits_weights else (self,):
            if part is not None:
                part.apply(initialise)

    def forward(
        self, images: Images, separate_heads: bool = False
    ) -> Logits | tuple[Logits, Logits]:
        """Logits; with `separate_heads`, a pair: class head and distillation head."""
        # If the head reads prefix tokens, the last layer computes only those.
        reads_prefix = self.config.pool == "class"
        num_read = self.config.num_prefix_tokens if reads_prefix else None
        if is_traced(images):
            # `separate_heads` is a proxy too; the graph computes the default output.
            return self.forward_head(traced(self, images, num_read))
        tokens = self.encode(images, num_read)
        return (
            self.forward_heads(tokens) if separate_heads else self.forward_head(tokens)
        )

    def forward_features(self, images: Images) -> Tokens:
        """Normalised tokens of the last layer, prefix tokens first."""
        return self.encode(images)

    def encode(self, images: Images, num_read: int | None = None) -> Tokens:
        """The same, or only the first `num_read`."""
        # A subclass with its own `tokenize`, or a hook, gets the tokens whole.
        if type(self).tokenize is not VisionTransformer.tokenize or is_hooked(
            self.encoder
        ):
            tokens = self.encoder(*self.tokenize(images), self.norm, num_read)
        else:
            parts, grid = self.token_parts(images)
            tokens = self.encoder(parts, grid, self.norm, num_read)
        return tokens[:, :num_read]

    def forward_head(self, tokens: Tokens, pre_logits: bool = False) -> Logits:
        """Logits from the tokens, or with `pre_logits` the input of the head."""
        pooled = self.pooled(tokens)
        if self.distillation_head is None or self.config.pool == "none":
            return pooled if pre_logits else self.head(pooled)
        if pre_logits:
            return (pooled + tokens[:, 1]) / 2
        logits, distilled = self.forward_heads(tokens)
        return (logits + distilled) / 2

    def forward_heads(self, tokens: Tokens) -> tuple[Logits, Logits]:
        """Logits of the head, and of the distillation head."""
        if self.distillation_head is None:
            raise UserError(
                "This model has no distillation token; create it with distilled=True."
            )
        return self.head(self.pooled(tokens)), self.distillation_head(tokens[:, 1])

    def pooled(self, tokens: Tokens) -> Tensor:
        """The input of the head."""
        pool = choose("pool", self.config.pool, POOLS)
        return pool(tokens, self.config.num_prefix_tokens)

    def tokenize(self, images: Images) -> tuple[Tokens, Grid]:
        """Tokens that enter the backbone, prefix tokens first, and their grid."""
        parts, grid = self.token_parts(images)
        return parts.cat(), grid

    def token_parts(self, images: Images) -> tuple[TokenParts, Grid]:
        """The parts of these tokens, and their grid."""
        check_images(images)
        channels, height, width = images.shape[-3:]
        if channels != self.config.in_channels:
            raise UserError(
                f"Images have {channels} channels and the model takes "
                f"{self.config.in_channels}; convert them, or create the model with "
                f"in_channels={channels}."
            )
        grid = self.tokenizer.grids((height, width))[-1]
        features, bias = self.features_of(images)
        if self.user_tokenizer:
            check_features(features, self.config, images.shape[0], grid)
        tokens = features.flatten(2).transpose(1, 2)
        return TokenParts(tokens, bias, self.prefix), grid

    def features_of(self, images: Images) -> tuple[FeatureMap, Tensor | None]:
        """The tokenizer's output, and a bias that it leaves to be added."""
        tokenizer: nn.Module = self.tokenizer
        if isinstance(tokenizer, Tokenizer):
            return tokenizer.without_bias(images)
        return tokenizer(images), None  # wrapped by torch.compile, for one

    def __prepare_scriptable__(self) -> nn.Module:
        """Called by `torch.jit.script`, which cannot compile this code."""
        raise UserError(
            "TorchScript, which PyTorch has deprecated, cannot script this model; use "
            "torch.compile, torch.export or torch.jit.trace."
        )

    def new_head(self, num_classes: int) -> nn.Module:
        """A new linear head; an identity for 0 classes."""
        if num_classes == 0:
            return nn.Identity()
        return nn.Linear(self.encoder.out_dim, num_classes)


def check_images(images: Images) -> None:
    """Raises an error unless images are a batch of floating point."""
    if images.ndim != 4:
        raise UserError(
            f"Images have the shape {tuple(images.shape)}, but the model takes batches "
            "(images, channels, height, width); use images[None] for a single image."
        )
    if not images.is_floating_point():
        raise UserError(
            f"Images are {images.dtype}, but the model takes floating point: divide "
            "uint8 by 255, then normalise with the mean and std of its training."
        )


def check_features(
    features: Any, config: ModelConfig, num_images: int, grid: Grid
) -> None:
    """Raises an error unless a user's tokenizer returns what it promises."""
    is_tensor = isinstance(features, Tensor)
    if not is_tensor or features.shape != (num_images, config.dim, *grid):
        found = f"a {type(features).__name__}"
        if is_tensor:
            found = f"the shape {tuple(features.shape)}"
        raise UserError(
            f"tokenizer={config.tokenizer!r} returned {found}; by its splits and dim="
            f"{config.dim} it must be (batch, {config.dim}, {grid[0]}, {grid[1]})."
        )


def check_tokens(config: ModelConfig, grid: Grid) -> None:
    """Raises an error for more than MAX_TOKENS tokens."""
    if grid[0] * grid[1] > MAX_TOKENS:
        raise UserError(
            f"image_size={config.image_size} makes {grid[0]}×{grid[1]} tokens; at most "
            f"{MAX_TOKENS:,} are allowed: choose smaller images or larger strides."
        )


def check_head(config: ModelConfig) -> None:
    """Raises an error if the head would read a token that the model lacks."""
    choose("pool", config.pool, POOLS)
    if config.pool == "class" and not config.class_token:
        raise UserError(
            "pool='class' needs class_token=True; without it, use pool='mean'."
        )
    if config.distilled and not config.class_token:
        raise UserError(
            "distilled=True needs class_token=True: the distillation token follows "
            "the class token."
        )


def initialise(module: nn.Module) -> None:
    """Initialises linear layers as published: small weights, zero biases."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
