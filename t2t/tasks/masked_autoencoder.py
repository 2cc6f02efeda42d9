"""A masked autoencoder: reconstructs masked patches from the visible tokens."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from t2t.data.augment.config import Augmentation
from t2t.data.augment.pipeline import distort, normalise_and_erase
from t2t.data.rng import CounterRng
from t2t.errors import UserError, require
from t2t.models.config import ModelConfig
from t2t.models.encoders import NEED_ALL_TOKENS, Encoder
from t2t.models.token_dropping import take_rows
from t2t.models.vit import VisionTransformer, initialise
from t2t.shapes import Images, Labels, Pixels
from t2t.tasks.base import Metric, Numbers, TaskContext, Views
from t2t.tasks.patches import (
    MaskToken,
    PatchMask,
    PatchNumbers,
    PatchTask,
    fixed_rng,
    random_order,
)

MIN_VARIANCE = 1e-6
"""Keeps flat patches finite; pixels are from 0 to 1."""

Patches = Float[Tensor, "batch patches tokens values"]


@dataclass(frozen=True, kw_only=True)
class MaskedAutoencoderArgs:
    """Settings of the masked autoencoder."""

    mask_ratio: float = 0.75
    """Share of the patches that are masked."""
    patch_size: int | None = None
    """Side of a patch in pixels, a multiple of a token's; None: a token's, at least
    4."""
    decoder_dim: int = 128
    """Width of the decoder."""
    decoder_depth: int = 2
    """Blocks of the decoder."""
    decoder_heads: int = 4
    """Attention heads of the decoder's blocks."""

    def __post_init__(self) -> None:
        """Checks the numbers."""
        require("task_args.mask_ratio", self.mask_ratio, 0, 1)
        for name in ("decoder_dim", "decoder_depth", "decoder_heads"):
            require(f"task_args.{name}", getattr(self, name), 1)
        if self.decoder_dim % self.decoder_heads:
            raise UserError(
                f"task_args.decoder_dim={self.decoder_dim} is not divisible by "
                f"decoder_heads={self.decoder_heads}; choose another number of heads."
            )


class Decoder(nn.Module):
    """A small transformer from the visible tokens to the pixels of all tokens."""

    def __init__(
        self, in_dim: int, num_values: int, task: PatchTask, args: MaskedAutoencoderArgs
    ) -> None:
        super().__init__()
        config = ModelConfig(
            dim=args.decoder_dim,
            depth=args.decoder_depth,
            num_heads=args.decoder_heads,
            mlp_ratio=4,
            positions="sinusoid_2d",
            class_token=False,
            pool="mean",
            image_size=task.context.image_size,
        )
        self.grid = task.grid
        self.embed = nn.Linear(in_dim, config.dim)
        self.mask_token = MaskToken(config.dim)
        self.encoder = Encoder(task.grid, config)
        self.norm = nn.LayerNorm(config.dim, eps=config.norm_eps)
        self.to_pixels = nn.Linear(config.dim, num_values)
        self.apply(initialise)

    def forward(
        self, visible: Tensor, order: PatchNumbers
    ) -> Float[Tensor, "batch hidden values"]:
        """The pixels of hidden tokens; `order` has the visible tokens first."""
        num_visible, num_hidden = visible.shape[1], order.shape[1] - visible.shape[1]
        tokens = nn.functional.pad(self.embed(visible), (0, 0, 0, num_hidden))
        numbers = torch.arange(order.shape[1], device=order.device)
        tokens = self.mask_token(tokens, (numbers >= num_visible)[None])
        tokens = take_rows(tokens, order.argsort(dim=1))
        decoded = self.encoder(tokens, self.grid, self.norm)
        pixels: Tensor = self.to_pixels(take_rows(decoded, order[:, num_visible:]))
        return pixels


class MaskedAutoencoder(PatchTask):
    """The model sees the visible tokens, and a small decoder predicts the others.

    The pixels of masked patches are blanked before the tokenizer, whose overlapping
    windows and attention would show them to visible tokens. The loss is the squared
    error of the masked patches, each normalised by its own mean and deviation.
    """

    Args = MaskedAutoencoderArgs
    args: MaskedAutoencoderArgs
    metrics = (
        Metric("val_loss", "reconstruction loss", digits=4, higher_is_better=False),
    )

    def __init__(self, model: nn.Module, context: TaskContext, args: Any) -> None:
        super().__init__(model, context, args, args.patch_size)
        if not self.model.encoder.works_on_parts:
            raise UserError(
                "The masked autoencoder shows the blocks the visible tokens only: it "
                "needs positions_at='stem', positions without an attention bias (not "
                "'relative') and blocks that work on a part of the tokens "
                f"({NEED_ALL_TOKENS})."
            )
        num_patches = self.patches.num_patches
        count = round(num_patches * (1 - args.mask_ratio))
        self.num_visible = min(max(count, 1), num_patches - 1)
        num_values = self.patches.token_size**2 * len(context.mean)
        self.decoder = Decoder(self.model.num_features, num_values, self, args)

    def views(
        self,
        pixels: tuple[Pixels, ...],
        labels: Labels,
        rng: CounterRng,
        augmentation: Augmentation,
    ) -> Views:
        """An image with blank patches, all of its pixels, and which are visible."""
        distorted = distort(pixels[0], rng, augmentation)
        order = random_order(rng, self.patches.num_patches)
        images = normalise_and_erase(distorted, rng, augmentation)
        return {
            "images": self.blank(images, self.mask(order)),
            "pixels": distorted,
            "order": order,
        }

    def forward(self, views: Views) -> Numbers:
        """The squared error of the masked patches."""
        predicted = self.predict(self.model, views["images"], views["order"])
        return {"loss": self.errors(predicted, views["pixels"], views["order"]).mean()}

    def score(self, model: nn.Module, images: Images, labels: Labels) -> Views:
        """The squared error with a mask that depends on the image alone."""
        levels = self.levels(images)
        order = random_order(fixed_rng(levels), self.patches.num_patches)
        predicted = self.predict(model, self.blank(images, self.mask(order)), order)
        return {"val_loss": self.errors(predicted, levels, order)}

    def predict(self, model: nn.Module, images: Images, order: PatchNumbers) -> Patches:
        """The normalised pixels of the masked patches, in their order."""
        assert isinstance(model, VisionTransformer)
        tokens, grid = model.tokenize(images)
        num_prefix = model.config.num_prefix_tokens
        in_order = self.patches.tokens_of(order)
        kept = in_order[:, : self.num_visible * self.patches.tokens_per_side**2]
        features = model.encoder(tokens, grid, model.norm, kept=kept)
        predicted = self.decoder(features[:, num_prefix:], in_order)
        num_masked = self.patches.num_patches - self.num_visible
        return predicted.float().unflatten(1, (num_masked, -1))

    def errors(
        self, predicted: Patches, levels: Tensor, order: PatchNumbers
    ) -> Float[Tensor, " batch"]:
        """The mean squared error of each image's masked patches."""
        targets, _, _ = self.targets(levels, order)
        return (predicted - targets).square().flatten(1).mean(1)

    def targets(
        self, levels: Tensor, order: PatchNumbers
    ) -> tuple[Patches, Tensor, Tensor]:
        """The masked patches normalised each by itself, their means and deviations."""
        masked = order[:, self.num_visible :, None, None]
        patches = self.patches.split(levels.float() / 255)
        patches = patches.gather(1, masked.expand(-1, -1, *patches.shape[2:]))
        variance, mean = torch.var_mean(patches, dim=(2, 3), keepdim=True)
        deviation = (variance + MIN_VARIANCE).sqrt()
        return (patches - mean) / deviation, mean, deviation

    def mask(self, order: PatchNumbers) -> PatchMask:
        """Which patches are masked: all but the first of the order."""
        return order.argsort(dim=1) >= self.num_visible

    def pictures(self, model: nn.Module, images: Images) -> dict[str, Pixels]:
        """The image, what the model sees, and the reconstruction.

        Predicted patches get their true mean and deviation, which the loss removes.
        """
        levels = self.levels(images)
        order = random_order(fixed_rng(levels), self.patches.num_patches)
        mask = self.mask(order)
        predicted = self.predict(model, self.blank(images, mask), order)
        _, mean, deviation = self.targets(levels, order)
        found = 255 * (predicted * deviation + mean)
        patches = self.patches.split(levels)
        masked = order[:, self.num_visible :, None, None].expand_as(found)
        rebuilt = self.patches.join(patches.scatter(1, masked, found))
        where = self.patches.to_pixels(mask)
        return {
            "image": levels.to(torch.uint8),
            "visible": levels.masked_fill(where, 128).to(torch.uint8),
            "reconstruction (true mean)": rebuilt.clamp(0, 255).round().to(torch.uint8),
        }
