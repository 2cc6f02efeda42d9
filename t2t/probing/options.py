"""Which probes to run, and what they draw."""

from collections.abc import Sequence
from dataclasses import dataclass

from t2t.errors import UserError, choose

METHODS = {
    "linear": "linear",
    "knn": "kNN",
    "few-shot": "few-shot",
    "finetune": "fine-tuned",
}
"""The methods and their names in a table."""

DEFAULT_SHOTS = (1, 5, 10)


@dataclass(frozen=True, kw_only=True)
class ProbeOptions:
    """Which probes, and what they draw."""

    methods: Sequence[str] = ("linear", "knn")
    """linear, knn, few-shot, finetune."""
    k: int | None = None
    """Neighbors of kNN; None chooses on held-out training images."""
    shots: Sequence[int] | None = None
    """Images per class of few-shot; None takes 1, 5 and 10 if there are enough."""
    draws: int = 10
    """How often few-shot draws its images."""
    examples: int = 1000
    """Images to fine-tune on."""
    epochs: int = 40
    """Epochs of the fine-tuning."""
    train_images: int | None = None
    """Labelled images to learn from, drawn by the seed; None takes all."""
    val_images: int | None = None
    """Images to evaluate on, drawn by the seed; None takes all."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Checks the values before anything is read."""
        for method in self.methods:
            choose("method", method, METHODS)
        if not self.methods:
            raise UserError(f"Name at least one method of {', '.join(METHODS)}.")
        numbers = {
            "k": self.k,
            "draws": self.draws,
            "examples": self.examples,
            "epochs": self.epochs,
            "train_images": self.train_images,
            "val_images": self.val_images,
            "shots": min(self.shots or (1,)),
        }
        for name, number in numbers.items():
            if number is not None and number < 1:
                raise UserError(f"{name}={number} is too small: give 1 or more.")

    def shots_for(self, fewest: int) -> tuple[int, ...]:
        """The numbers of shots if the smallest class has `fewest` images."""
        if self.shots is not None:
            return tuple(sorted({*self.shots}))
        return tuple(each for each in DEFAULT_SHOTS if each <= fewest)
