"""A recipe: all settings that a result depends on, but not those of the machine."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple, get_type_hints

from t2t.config import MAX_IMAGE_SIDE, check_plain, convert
from t2t.data.augment.config import Augmentation
from t2t.data.label_config import LabelConfig
from t2t.errors import UserError, require
from t2t.models.config import ModelConfig

MAX_EPOCHS = 100_000
SCHEDULE_EPOCHS = ("warmup_epochs", "floor_epochs")
"""Fields of a schedule that count epochs."""


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
    """Of the sides of the images."""

    @property
    def cost(self) -> float:
        """The approximate time of a step, relative to one on all tokens."""
        # Measured on a GPU: 0.60 with half of the tokens and 12 blocks, 0.66 with 7.
        return (0.25 + 0.75 * self.keep) * self.scale**2


SET_ELSEWHERE = {
    "num_classes": "the data has the number of classes",
    "image_size": "it is the recipe's image_size",
    "in_channels": "it is the recipe's channels",
    "drop_path": "it is the recipe's drop_path",
}
"""Model settings that are not part of `model_args`, and where they come from."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All settings of one training run."""

    name: str
    model: str
    model_args: dict[str, Any] = field(
        default_factory=dict, metadata={"keys_of": ModelConfig}
    )
    """Settings of the model, as `create_model` takes them."""
    weights: str | None = None
    """Weights to start from: a file, run folder, URL, timm name, hf-hub:owner/name."""
    weights_checksum: str | None = None
    """Of the weights' tensors; others are refused. None accepts any."""
    freeze: bool = False
    """Trains the head alone; the rest of the model stays as it is."""
    data: str = "digits"
    """A folder, file or named data set."""
    labels: LabelConfig = field(default_factory=LabelConfig)
    """Where the labels are, if not in class folders: tables, or a pattern."""
    image_size: tuple[int, int] = (224, 224)
    channels: int = 3
    epochs: int = 300
    batch_size: int = 512
    """Images per step, over all devices and micro-batches together."""
    repeats: int = 1
    """Repeated augmentation: copies of each image in a batch."""
    balance: Literal["sampling", "weights"] | None = None
    """Balances uneven classes: shows small ones more often, or weights the loss."""
    balance_power: float | None = None
    """An image of a class of n images counts as n to the minus this: 1 is a full
    balance. None: 1 for sampling, and 0.5, the square root, for weights."""
    drop_path: float = 0.0
    token_dropping: TokenDropping = field(default_factory=TokenDropping)
    progressive_resizing: ProgressiveResizing = field(
        default_factory=ProgressiveResizing
    )
    light_augment_share: float = 0.0
    """Share of the epochs, at the end, in which images are only cropped and flipped."""
    seed: int = 0
    holdout: int = 0
    """Training images to evaluate on instead of the validation set."""
    fold: tuple[int, int] | None = None
    """Cross-validation: (1, 5) evaluates on the first of five parts of all images, and
    trains on the others; of data with a validation set, of its training images."""
    evaluate_every: int = 1
    """Epochs between evaluations; the last epoch is always evaluated."""
    keep: Literal["last", "best"] = "last"
    """The weights of the final model: of the last evaluation, or of the best one by
    the primary metric."""
    patience: int | None = None
    """Stops after so many evaluations without a better primary metric."""
    task: str = "classify"
    """What is learned: classify, distill_soft, masked_autoencoder, …"""
    task_args: dict[str, Any] = field(default_factory=dict)
    """Settings of the task, such as the teacher of a distillation."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: Schedule = field(default_factory=Schedule)
    ema: EMA = field(default_factory=EMA)
    crop: CropConfig = field(default_factory=CropConfig)
    augmentation: Augmentation = field(default_factory=Augmentation)

    def __post_init__(self) -> None:
        """Checks the values before anything starts."""
        for name, hint in get_type_hints(Recipe).items():
            value = convert(getattr(self, name), hint, name)
            check_plain(value, name)
            object.__setattr__(self, name, value)  # 224 becomes (224, 224)
        self.check_name()
        require("epochs", self.epochs, 1, MAX_EPOCHS)
        for name in ("batch_size", "repeats", "channels", "evaluate_every"):
            require(name, getattr(self, name), 1)
        for side in self.image_size:
            require("image_size", side, 1, MAX_IMAGE_SIDE)
        if self.patience is not None:
            require("patience", self.patience, 1)
        if self.balance_power is not None:
            require("balance_power", self.balance_power, 0.01, 1)
        require("seed", self.seed, 0, below=2**32)
        require("holdout", self.holdout, 0)
        require("drop_path", self.drop_path, 0, below=1)
        require("light_augment_share", self.light_augment_share, 0, 1)
        if self.schedule.warmup_epochs + self.schedule.floor_epochs > self.epochs:
            raise UserError(
                f"{self.schedule.warmup_epochs:g} warm-up and "
                f"{self.schedule.floor_epochs:g} floor epochs do not fit into "
                f"epochs={self.epochs}; set schedule.warmup_epochs and "
                "schedule.floor_epochs lower."
            )
        self.check_fold()
        self.check_model_args()
        self.check_channels()

    def check_fold(self) -> None:
        """Raises an error for a fold that does not exist, or beside `holdout`."""
        if self.fold is None:
            return
        number, num_folds = self.fold
        require("fold[1]", num_folds, 2)
        require("fold[0]", number, 1, num_folds)
        if self.holdout:
            raise UserError(
                f"fold={number},{num_folds} and holdout={self.holdout} both choose the "
                "images to evaluate on; leave one of them out."
            )

    def check_model_args(self) -> None:
        """Raises an error for model settings that come from elsewhere."""
        for name in self.model_args.keys() & SET_ELSEWHERE.keys():
            raise UserError(
                f"model_args.{name} cannot be set: {SET_ELSEWHERE[name]}; leave it out."
            )
        if self.model_args.get("pool") == "none":
            raise UserError(
                "model_args.pool=none predicts a class for every token, but a recipe "
                "trains to predict one per image; choose class or mean."
            )

    def check_name(self) -> None:
        """Raises an error if the name cannot be a folder's."""
        name = self.name
        plain = name.isprintable() and not {"/", "\\"} & {*name}
        if not name.strip() or name.startswith(".") or not plain:
            raise UserError(
                f"name={name!r} must be a plain name, such as mine: the run's folder "
                "gets this name; --folder PATH chooses another folder."
            )

    def check_channels(self) -> None:
        """Checks that images and their augmentation can have so many channels."""
        if self.channels not in (1, 3, 4):
            raise UserError(
                f"channels={self.channels} is not supported: images are read as 1 "
                "(gray), 3 (colour) or 4 (with opacity)."
            )
        if len(self.augmentation.mean) != self.channels:
            raise UserError(
                f"augmentation.mean={self.augmentation.mean} does not fit "
                f"channels={self.channels}; give one value per channel."
            )
        augmentation = self.augmentation
        colour = {
            "rand_augment=none": augmentation.rand_augment is not None,
            "three_augment=false": augmentation.three_augment,
            "colour_jitter=0,0,0,0": any(augmentation.colour_jitter),
            "grayscale=0": any(augmentation.grayscale),
        }
        if self.channels not in (1, 3) and any(colour.values()):
            off = " and ".join(
                f"augmentation.{each}" for each in colour if colour[each]
            )
            raise UserError(
                f"channels={self.channels} does not allow colour augmentation; "
                f"set {off}."
            )

    def check_weights(self) -> None:
        """Raises an error if a recipe fine-tunes and has no weights."""
        body_lr = self.optimizer.body_lr
        if self.freeze and self.weights is None:
            raise UserError(
                f"{self.name} trains the head alone (freeze=true), but has no trained "
                "weights to start from: add --from WEIGHTS, or leave out --freeze."
            )
        if body_lr is not None and self.weights is None:
            raise UserError(
                f"{self.name} fine-tunes trained weights (optimizer.body_lr="
                f"{body_lr:g}), but has none: add --from WEIGHTS, or train "
                "from scratch with --set optimizer.body_lr=none."
            )

    def schedule_for(
        self, epochs: int, given: Mapping[str, float] | None = None
    ) -> dict[str, float]:
        """Warm-up and floor epochs for another number of epochs, scaled in proportion.

        Empty if they fit without scaling; `given` ones are never scaled.
        """
        own = {name: getattr(self.schedule, name) for name in SCHEDULE_EPOCHS}
        if sum({**own, **(given or {})}.values()) <= epochs:
            return {}
        return {
            name: value * epochs / self.epochs
            for name, value in own.items()
            if value and name not in (given or {})
        }

    def phase_at(self, progress: float) -> Phase:
        """The phase at a share of the training, from 0 to 1."""
        return Phase(
            self.token_dropping.keep_at(progress),
            progress >= 1 - self.light_augment_share,
            self.progressive_resizing.scale_at(progress),
        )

    def phases(self, since: float = 0.0) -> dict[Phase, float]:
        """The phases after a share of the training, and their shares of all steps."""
        ends = [self.token_dropping.until, 1 - self.light_augment_share, 1.0]
        ends += self.progressive_resizing.ends
        cuts = sorted({since, *(end for end in ends if end > since)})
        shares: dict[Phase, float] = {}
        for start, stop in pairwise(cuts):
            phase = self.phase_at(start)
            shares[phase] = shares.get(phase, 0.0) + stop - start
        return shares

    def cost(self, since: float = 0.0) -> float:
        """The time of all steps after a share of the training.

        It is relative to a whole training on all tokens.
        """
        return sum(share * phase.cost for phase, share in self.phases(since).items())

    @property
    def own_balance_power(self) -> float:
        """The power by which classes are balanced; 0 if they are not."""
        if self.balance is None:
            return 0.0
        if self.balance_power is not None:
            return self.balance_power
        return 1.0 if self.balance == "sampling" else 0.5

    @property
    def num_evaluations(self) -> int:
        """How often the run is evaluated."""
        return -(-self.epochs // self.evaluate_every)
