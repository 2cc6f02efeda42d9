"""Masked patch prediction: the mean colour of corrupted patches, one of 512."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from t2t.data.augment.config import Augmentation
from t2t.data.augment.pipeline import distort, normalise_and_erase
from t2t.data.rng import CounterRng
from t2t.errors import UserError, require
from t2t.models.token_dropping import take_rows
from t2t.models.vit import VisionTransformer, initialise
from t2t.shapes import Images, Labels, Pixels
from t2t.tasks.base import VAL_LOSS, Metric, Numbers, TaskContext, Views
from t2t.tasks.patches import (
    MaskToken,
    PatchMask,
    PatchNumbers,
    PatchTask,
    fixed_rng,
    random_order,
)

BITS = 3
"""Bits of each channel of a mean colour."""
STEP = 2 ** (8 - BITS)
"""Levels from 0 to 255 that are one colour."""


@dataclass(frozen=True, kw_only=True)
class MaskedPatchArgs:
    """Settings of masked patch prediction; the defaults are ViT's."""

    corrupt_ratio: float = 0.5
    """Share of the patches that are corrupted, and whose colour is predicted."""
    mask_share: float = 0.8
    """Share of the corrupted patches that are replaced by the mask token."""
    replace_share: float = 0.1
    """Share of the corrupted patches that show another patch; the rest is kept."""
    patch_size: int | None = None
    """Side of a patch in pixels, a multiple of a token's; None: a token's, at least
    4."""

    def __post_init__(self) -> None:
        """Checks the shares."""
        for name in ("corrupt_ratio", "mask_share", "replace_share"):
            require(f"task_args.{name}", getattr(self, name), 0, 1)
        if self.mask_share + self.replace_share > 1 + 1e-9:
            raise UserError(
                f"task_args.mask_share={self.mask_share:g} and replace_share="
                f"{self.replace_share:g} add up to more than 1; lower one of them."
            )


class Corruption(NamedTuple):
    """Which patches are corrupted, and how."""

    chosen: PatchNumbers
    """The corrupted patches."""
    masked: PatchMask
    """Those that are replaced by the mask token."""
    shown: Int64[Tensor, "batch patches"]
    """The patch whose pixels are at each patch's place."""


class MaskedPatches(PatchTask):
    """Predicts the 3-bit mean colour of every corrupted patch.

    The pixels of masked patches are blanked before the tokenizer, whose overlapping
    windows and attention would show them to other tokens; the tokens of these patches
    are then replaced by a learned mask token.
    """

    Args = MaskedPatchArgs
    args: MaskedPatchArgs
    metrics = (Metric("masked_accuracy", "masked-patch accuracy", " %"), VAL_LOSS)

    def __init__(self, model: nn.Module, context: TaskContext, args: Any) -> None:
        super().__init__(model, context, args, args.patch_size)
        num_patches = self.patches.num_patches
        count = round(num_patches * args.corrupt_ratio)
        # At least one is left to be shown in the place of another.
        self.num_corrupted = min(max(count, 1), num_patches - 1)
        self.mask_token = MaskToken(self.model.config.dim)
        num_colours = 2 ** (BITS * len(context.mean))
        self.head = nn.Linear(self.model.num_features, num_colours).apply(initialise)

    def views(
        self,
        pixels: tuple[Pixels, ...],
        labels: Labels,
        rng: CounterRng,
        augmentation: Augmentation,
    ) -> Views:
        """A corrupted image, its corrupted patches and their colours."""
        distorted = distort(pixels[0], rng, augmentation)
        corruption = self.draw_corruption(rng)
        images = normalise_and_erase(distorted, rng, augmentation)
        return {
            "images": self.corrupt(images, corruption),
            "masked": corruption.masked,
            "chosen": corruption.chosen,
            "colours": self.mean_colours(distorted).gather(1, corruption.chosen),
        }

    def forward(self, views: Views) -> Numbers:
        """The cross-entropy over the corrupted patches, and their accuracy."""
        colours = views["colours"]
        logits = self.predict(
            self.model, views["images"], views["masked"], views["chosen"]
        )
        hits = logits.detach().argmax(2) == colours
        return {
            "loss": F.cross_entropy(logits.flatten(0, 1), colours.flatten()),
            "corrupted_accuracy": 100 * hits.float().mean(),
        }

    def score(self, model: nn.Module, images: Images, labels: Labels) -> Views:
        """Accuracy and loss of a fixed half of the patches, all of them masked."""
        levels = self.levels(images)
        hidden = self.fixed_mask(levels)
        logits = self.predict(
            model, self.corrupt(images, hidden), hidden.masked, hidden.chosen
        )
        colours = self.mean_colours(levels).gather(1, hidden.chosen)
        losses = F.cross_entropy(
            logits.flatten(0, 1), colours.flatten(), reduction="none"
        )
        return {
            "masked_accuracy": 100 * (logits.argmax(2) == colours).float().mean(1),
            "val_loss": losses.unflatten(0, colours.shape).mean(1),
        }

    def predict(
        self,
        model: VisionTransformer | nn.Module,
        images: Images,
        masked: PatchMask,
        chosen: PatchNumbers,
    ) -> Float[Tensor, "batch chosen colours"]:
        """Logits of the colour of chosen patches of a corrupted image."""
        assert isinstance(model, VisionTransformer)
        tokens, grid = model.tokenize(images)
        num_prefix = model.config.num_prefix_tokens
        mask = F.pad(self.patches.to_tokens(masked), (num_prefix, 0))
        features = model.encoder(self.mask_token(tokens, mask), grid, model.norm)
        by_patch = self.patches.mean_of_tokens(features[:, num_prefix:])
        logits: Tensor = self.head(take_rows(by_patch, chosen))
        return logits.float()

    def draw_corruption(self, rng: CounterRng) -> Corruption:
        """Half of the patches of each image: masked, replaced or kept."""
        num, count = self.patches.num_patches, self.num_corrupted
        order = random_order(rng, num)
        corrupted = order.argsort(dim=1) < count
        draw = rng.uniform("mask.kind", num)
        mask_share, replace_share = self.args.mask_share, self.args.replace_share
        masked = corrupted & (draw < mask_share)
        replaced = corrupted & ~masked & (draw < mask_share + replace_share)
        # A corrupted patch is shown nowhere else: its colour is to be predicted.
        intact = count + rng.integers("mask.other", num - count, num)
        own = torch.arange(num, device=order.device)
        shown = torch.where(replaced, order.gather(1, intact), own)
        return Corruption(order[:, :count], masked, shown)

    def fixed_mask(self, levels: Tensor) -> Corruption:
        """A mask that depends on the image alone; nothing is replaced or kept."""
        order = random_order(fixed_rng(levels), self.patches.num_patches)
        ranks = order.argsort(dim=1)
        own = torch.arange(order.shape[1], device=order.device).expand_as(order)
        count = self.num_corrupted
        return Corruption(order[:, :count], ranks < count, own)

    def corrupt(self, images: Images, corruption: Corruption) -> Images:
        """Images with blank pixels in masked patches, and others in replaced ones."""
        patches = self.patches.split(images)
        shown = corruption.shown[:, :, None, None].expand_as(patches)
        return self.blank(
            self.patches.join(patches.gather(1, shown)), corruption.masked
        )

    def mean_colours(self, levels: Tensor) -> Int64[Tensor, "batch patches"]:
        """The number of each patch's mean colour: 3 bits of every channel, red first.

        `levels` are whole numbers from 0 to 255, not normalised.
        """
        num_channels = levels.shape[1]
        patches = self.patches.split(levels.long()).unflatten(3, (-1, num_channels))
        # Whole numbers: a mean at the border of two colours is not rounded.
        means = patches.sum((2, 3)) // (STEP * self.patches.side**2)
        places = torch.arange(num_channels - 1, -1, -1, device=levels.device)
        return (means << (BITS * places)).sum(2)

    def pictures(self, model: nn.Module, images: Images) -> dict[str, Pixels]:
        """The image, what is masked, and the true and the predicted colours."""
        levels = self.levels(images)
        hidden = self.fixed_mask(levels)
        logits = self.predict(
            model, self.corrupt(images, hidden), hidden.masked, hidden.chosen
        )
        true = self.mean_colours(levels)
        predicted = true.scatter(1, hidden.chosen, logits.argmax(2))
        where = self.patches.to_pixels(hidden.masked)
        return {
            "image": levels.to(torch.uint8),
            "masked": levels.masked_fill(where, STEP * 4).to(torch.uint8),
            **{
                title: torch.where(where, self.paint(colours), levels).to(torch.uint8)
                for title, colours in (
                    ("true mean colours", true),
                    ("predicted colours", predicted),
                )
            },
        }

    def paint(self, colours: Int64[Tensor, "batch patches"]) -> Tensor:
        """Images of patches in the middle level of their colours."""
        places = range(len(self.context.mean) - 1, -1, -1)
        bins = torch.stack([(colours >> (BITS * p)) % 2**BITS for p in places], dim=2)
        middle = (STEP * bins + STEP // 2).float()
        pixels = torch.stack(
            [self.patches.enlarge(each, self.patches.side) for each in middle.unbind(2)]
        )
        return pixels.transpose(0, 1)
