"""A recipe: all that a result depends on, and nothing that the machine decides."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from t2t.data.augmentation import Augmentation
from t2t.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """How weights are changed by gradients."""

    name: str = "adamw"
    """adamw, sgd, muon (matrices; AdamW for the rest), or timm's names."""
    lr: float = 1e-3
    """Peak learning rate at `reference_batch_size`."""
    reference_batch_size: int = 512
    """Batch size that `lr` is stated for."""
    scaling: Literal["linear", "sqrt", "none"] = "linear"
    """How the learning rate follows the batch size."""
    weight_decay: float = 0.05
    """Decay of matrices; norms, biases, tokens and positions have none."""
    betas: tuple[float, float] = (0.9, 0.999)
    momentum: float = 0.9
    """For sgd; Muon uses 0.95."""
    muon_on: Literal["blocks", "tokens_too"] = "blocks"
    """Whose matrices Muon takes: the blocks', or those that make the tokens as well."""
    adamw_lr: float | None = None
    """With Muon: learning rate of the rest; None takes `lr`."""
    body_lr: float | None = None
    """Learning rate of everything but the head, for fine-tuning; None takes `lr`."""
    layer_decay: float = 1.0
    """Factor of the learning rate from each layer to the one below it."""
    clip_norm: float = 0.0
    """Largest norm of the gradient; 0 leaves it as it is."""

    def __post_init__(self) -> None:
        """Refuses rates that would lead away from the goal."""
        for name in ("lr", "adamw_lr", "body_lr", "weight_decay", "clip_norm"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise UserError(f"optimizer.{name}={value} must be 0 or more.")

    def scaled(self, lr: float, batch_size: int) -> float:
        """A learning rate stated for the reference batch, at another batch size."""
        ratio = batch_size / self.reference_batch_size
        return lr * {"linear": ratio, "sqrt": ratio**0.5, "none": 1.0}[self.scaling]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How the learning rate moves over the epochs, as a share of its peak."""

    name: Literal["cosine", "linear", "constant"] = "cosine"
    warmup_epochs: float = 10.0
    start: float = 1e-3
    """Share of the peak that the warm-up starts from."""
    floor: float = 0.02
    """Share of the peak at the end."""
    floor_epochs: float = 0.0
    """Epochs at the floor, within the run's epochs."""


@dataclass(frozen=True, kw_only=True)
class Average:
    """The running average of the weights, which is what a run delivers."""

    decay: float = 0.9998
    """Share that stays at each step, once warmed up; 0 keeps no average."""
    warmup: bool = True
    """Lets the average follow closely at first, so that no random start stays in it."""

    def decay_at(self, step: int) -> float:
        """The decay at a step, counted from 1."""
        return min(self.decay, (1 + step) / (10 + step)) if self.warmup else self.decay


@dataclass(frozen=True, kw_only=True)
class TokenDropping:
    """Training on some of an image's tokens first, and on all of them at the end.

    Steps get cheaper by more than the share that is dropped, and images more varied.
    """

    keep: float = 1.0
    """Share of the image's tokens that the blocks see, drawn anew at every step."""
    until: float = 0.75
    """Share of the epochs after which they see all tokens."""

    def __post_init__(self) -> None:
        """Refuses shares that are none."""
        for name, least in (("keep", 0.01), ("until", 0.0)):
            value = getattr(self, name)
            if not least <= value <= 1:
                raise UserError(
                    f"dropping.{name}={value} is a share from {least} to 1."
                )

    def keep_at(self, progress: float) -> float:
        """The share of tokens to keep when so much of the training is done."""
        return self.keep if progress < self.until else 1.0


@dataclass(frozen=True, kw_only=True)
class Crop:
    """How images of any size get the model's size."""

    kind: Literal["random", "resize"] = "resize"
    """While training: a random box, or the whole image."""
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: Literal["random", "bilinear", "bicubic"] = "random"
    evaluation_fraction: float = 1.0
    """Share of the resized image's sides that evaluation looks at."""


class Phase(NamedTuple):
    """What steps do alike for a part of the training; another one is compiled anew."""

    keep: float
    """Share of the tokens that the blocks see."""
    calm: bool
    """Whether images are only cropped and flipped."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One training run, to the last number."""

    name: str
    model: str
    choices: dict[str, Any] = field(default_factory=dict)
    """Choices put into the named model, as `create_model` takes them."""
    weights: str | None = None
    """Weights to start from: a file, run folder, URL or hf-hub:owner/name."""
    data: str = "digits"
    """Where images come from when no other data is named."""
    image_size: tuple[int, int] = (224, 224)
    channels: int = 3
    epochs: int = 300
    batch_size: int = 512
    """Images to a step, over all devices and micro-batches together."""
    repeats: int = 1
    """Repeated augmentation: how often an image stands in a batch."""
    drop_path: float = 0.0
    dropping: TokenDropping = field(default_factory=TokenDropping)
    calm: float = 0.0
    """Share of the epochs, at the end, whose images are only cropped and flipped."""
    seed: int = 0
    hold_out: int = 0
    """Training images to evaluate on instead of the validation set."""
    evaluate_every: int = 1
    """Epochs between evaluations; the last epoch is always evaluated."""
    objective: str = "classify"
    teacher: str | None = None
    """Weights of the teacher, for the distillation objectives."""
    distillation_weight: float = 1.0
    distillation_temperature: float = 1.0
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: Schedule = field(default_factory=Schedule)
    average: Average = field(default_factory=Average)
    crop: Crop = field(default_factory=Crop)
    augmentation: Augmentation = field(default_factory=Augmentation)

    def __post_init__(self) -> None:
        """Refuses what could not be meant, before anything starts."""
        for name in ("epochs", "batch_size", "repeats", "channels", "evaluate_every"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)} must be 1 or more.")
        if self.schedule.warmup_epochs + self.schedule.floor_epochs > self.epochs:
            raise UserError(
                f"{self.schedule.warmup_epochs:g} warm-up and "
                f"{self.schedule.floor_epochs:g} floor epochs do not fit into "
                f"epochs={self.epochs}; set schedule.warmup_epochs and "
                "schedule.floor_epochs lower."
            )
        if not 0 <= self.calm <= 1:
            raise UserError(f"calm={self.calm} is a share of the epochs, from 0 to 1.")
        if len(self.augmentation.mean) not in (1, self.channels):
            raise UserError(
                f"augmentation.mean={self.augmentation.mean} does not fit "
                f"channels={self.channels}; give one value a channel."
            )

    def phase_at(self, progress: float) -> Phase:
        """The phase when so much of the training is done."""
        return Phase(self.dropping.keep_at(progress), progress >= 1 - self.calm)

    def phases(self) -> dict[Phase, float]:
        """Every phase in its order, and the share of the training that it takes."""
        cuts = sorted({0.0, self.dropping.until, 1 - self.calm, 1.0})
        shares: dict[Phase, float] = {}
        for start, stop in pairwise(cuts):
            phase = self.phase_at(start)
            shares[phase] = shares.get(phase, 0.0) + stop - start
        return shares
