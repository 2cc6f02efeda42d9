"""A recipe: all settings that a result depends on, but not those of the machine."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, get_type_hints

from t2t.config import MAX_IMAGE_SIDE, check_plain, convert
from t2t.data.augment.config import Augmentation
from t2t.data.label_config import LabelConfig
from t2t.errors import UserError, require
from t2t.models.config import ModelConfig
from t2t.training.recipe_parts import (
    EMA,
    CropConfig,
    OptimizerConfig,
    Phase,
    ProgressiveResizing,
    Schedule,
    TokenDropping,
)

__all__ = [
    "EMA",
    "CropConfig",
    "OptimizerConfig",
    "Phase",
    "ProgressiveResizing",
    "Recipe",
    "Schedule",
    "TokenDropping",
]

MAX_EPOCHS = 100_000
SCHEDULE_EPOCHS = ("warmup_epochs", "floor_epochs")
"""Fields of a schedule that count epochs."""

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
    """Checksum of the weights' tensors; others are refused. None accepts any."""
    freeze: bool = False
    """Trains only the head; the rest of the model stays as it is."""
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
    """Stops after this many evaluations without a better primary metric."""
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
        """Checks that images and their augmentation support the number of channels."""
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
                f"{self.name} trains only the head (freeze=true), but has no trained "
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
