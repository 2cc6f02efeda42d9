"""What a model says of an image: its most probable classes."""

from dataclasses import dataclass

TOP = 5
"""Classes of a prediction."""
THRESHOLD = 0.5
"""Probability from which a class is predicted, with several labels per image."""


@dataclass(frozen=True)
class ClassProbability:
    """A class and its probability."""

    index: int
    class_name: str
    """As in the training data."""
    name: str
    """Readable name; differs from `class_name` only for WordNet ids."""
    probability: float


@dataclass(frozen=True)
class Prediction:
    """The most probable classes of one image, best first.

    With several labels per image, those that reach the threshold.
    """

    image: str
    classes: tuple[ClassProbability, ...]
    below: ClassProbability | None = None
    """The most probable class, if none reaches the threshold."""

    @property
    def best(self) -> ClassProbability:
        """The most probable class."""
        return self.below or self.classes[0]
