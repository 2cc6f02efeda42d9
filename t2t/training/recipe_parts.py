"""The parts of a recipe: optimizer, schedule, EMA, crops, and what changes in a run."""

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from t2t.errors import UserError, require


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The optimizer and its learning rates."""

    name: str = "adamw"
    """adamw, sgd, muon (matrices and filters; AdamW for the rest), or a timm name."""
    lr: float = 1e-3
    """Peak learning rate at `reference_batch_size`."""
    reference_batch_size: int = 512
    """Batch size that `lr` is stated for."""
    scaling: Literal["linear", "sqrt", "none"] = "linear"
    """How the learning rate scales with the batch size."""
    weight_decay: float = 0.05
    """Decay of matrices; norms, biases, tokens and positions have none."""
    betas: tuple[float, float] = (0.9, 0.999)
    momentum: float = 0.9
    """For sgd; Muon uses 0.95."""
    muon_on: Literal["blocks", "tokens_too"] = "blocks"
    """What Muon trains: the blocks, or also the tokenizer with the first layer."""
    adamw_lr: float | None = None
    """With Muon: learning rate of the rest; None takes `lr`."""
    body_lr: float | None = None
    """Learning rate of everything but the head, for fine-tuning; None takes `lr`."""
    layer_decay: float = 1.0
    """Factor of the learning rate per layer, from the head down."""
    clip_norm: float = 0.0
    """Largest norm of the gradient; 0 does not clip."""

    def __post_init__(self) -> None:
        """Checks the ranges of values."""
        for name in ("lr", "adamw_lr", "body_lr", "weight_decay", "clip_norm"):
            if getattr(self, name) is not None:
                require(f"optimizer.{name}", getattr(self, name), 0)
        if self.body_lr is not None and self.lr == 0:
            raise UserError(
                "optimizer.lr=0 does not train the head, and optimizer.body_lr is "
                "relative to it; set optimizer.lr above 0."
            )
        require("optimizer.reference_batch_size", self.reference_batch_size, 1)
        require("optimizer.momentum", self.momentum, 0, below=1)
        require("optimizer.layer_decay", self.layer_decay, 0, 1)
        for number, beta in enumerate(self.betas):
            require(f"optimizer.betas[{number}]", beta, 0, below=1)

    def scaled(self, lr: float, batch_size: int) -> float:
        """A learning rate stated for the reference batch, at another batch size."""
        ratio = batch_size / self.reference_batch_size
        return lr * {"linear": ratio, "sqrt": ratio**0.5, "none": 1.0}[self.scaling]

    def as_adamw(self) -> "OptimizerConfig":
        """Instead of Muon, AdamW for all weights at the rate that it has with Muon."""
        if self.name != "muon":
            return self
        lr = self.lr if self.adamw_lr is None else self.adamw_lr
        return replace(self, name="adamw", lr=lr, adamw_lr=None)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The learning rate over the epochs, relative to its peak."""

    name: Literal["cosine", "linear", "constant"] = "cosine"
    warmup_epochs: float = 10.0
    warmup_prefix: bool = True
    """Whether the decay starts after the warm-up (as timm's option) or at epoch 0."""
    update_every: Literal["step", "epoch"] = "step"
    """Whether the learning rate changes at every step or at every epoch."""
    start: float = 1e-3
    """Share of the peak that the warm-up starts from."""
    floor: float = 0.02
    """Share of the peak at the end."""
    floor_epochs: float = 0.0
    """Epochs at the floor, within the run's epochs."""

    def __post_init__(self) -> None:
        """Checks the ranges of values."""
        for name in ("warmup_epochs", "floor_epochs"):
            require(f"schedule.{name}", getattr(self, name), 0)
        for name in ("start", "floor"):
            require(f"schedule.{name}", getattr(self, name), 0, 1)


@dataclass(frozen=True, kw_only=True)
class EMA:
    """The exponential moving average of the weights: a run's final model."""

    decay: float = 0.9998
    """Share that is kept at each step, after the warm-up; 0 turns the EMA off."""
    warmup: bool = True
    """Whether the decay starts low and rises, to forget the random initial weights."""

    def __post_init__(self) -> None:
        """Checks the range of the decay."""
        require("ema.decay", self.decay, 0, below=1)

    def decay_at(self, step: int) -> float:
        """The decay at a step, counted from 1."""
        return min(self.decay, (1 + step) / (10 + step)) if self.warmup else self.decay


@dataclass(frozen=True, kw_only=True)
class TokenDropping:
    """Trains on some of an image's tokens first, and on all of them at the end.

    Steps are faster, and images more varied.
    """

    keep: float = 1.0
    """Share of the image's tokens that the blocks see, drawn at every step."""
    until: float = 0.75
    """Share of the epochs after which the blocks see all tokens."""

    def __post_init__(self) -> None:
        """Checks the ranges of values."""
        require("token_dropping.keep", self.keep, 0.01, 1)
        require("token_dropping.until", self.until, 0, 1)

    def keep_at(self, progress: float) -> float:
        """The share of tokens to keep at a share of the training."""
        return self.keep if progress < self.until else 1.0


@dataclass(frozen=True, kw_only=True)
class ProgressiveResizing:
    """Trains on smaller images first, and on those of the whole size at the end."""

    initial_scale: float = 1.0
    """Side of the first images, over the recipe's; 1 turns it off."""
    until: float = 0.6
    """Share of the epochs after which images have their whole size."""
    num_sizes: int = 2
    """Smaller sizes, which grow by equal steps."""

    def __post_init__(self) -> None:
        """Checks the ranges of values."""
        require("progressive_resizing.initial_scale", self.initial_scale, 0.1, 1)
        require("progressive_resizing.until", self.until, 0, 1)
        require("progressive_resizing.num_sizes", self.num_sizes, 1, 10)

    @property
    def ends(self) -> list[float]:
        """The shares of the training at which a smaller size ends."""
        if self.initial_scale == 1:
            return []
        numbers = range(1, self.num_sizes + 1)
        return [self.until * number / self.num_sizes for number in numbers]

    def scale_at(self, progress: float) -> float:
        """The scale of the images' sides at a share of the training."""
        num_done = sum(progress >= end for end in self.ends)
        if num_done == len(self.ends):
            return 1.0
        grown = (1 - self.initial_scale) * num_done / self.num_sizes
        return round(self.initial_scale + grown, 6)


@dataclass(frozen=True, kw_only=True)
class CropConfig:
    """How images are cropped and resized to the model's size."""

    kind: Literal["random", "resize"] = "resize"
    """While training: a random box, or the whole image."""
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: Literal["random", "bilinear", "bicubic"] = "random"
    evaluation_fraction: float = 1.0
    """Share of the resized image's sides that the center crop keeps in evaluation."""

    def __post_init__(self) -> None:
        """Checks the ranges of values."""
        for name, most in (("scale", 1.0), ("ratio", 100.0)):
            low, high = getattr(self, name)
            require(f"crop.{name}[1]", high, 0.001, most)
            require(f"crop.{name}[0]", low, 0.001, high)
        require("crop.evaluation_fraction", self.evaluation_fraction, 0.01, 1)


class Phase(NamedTuple):
    """A part of the training whose steps are compiled together."""

    keep: float
    """Share of the tokens that the blocks see."""
    light_augment: bool
    """Whether images are only cropped and flipped."""
    scale: float = 1.0
    """Factor of the image sides."""

    @property
    def cost(self) -> float:
        """The approximate time of a step, relative to one on all tokens."""
        # Measured on a GPU: 0.60 with half of the tokens and 12 blocks, 0.66 with 7.
        return (0.25 + 0.75 * self.keep) * self.scale**2
