"""What a model says of an image: its most probable classes."""

from dataclasses import dataclass


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
    """The most probable classes of one image, best first."""

    image: str
    classes: tuple[ClassProbability, ...]

    @property
    def best(self) -> ClassProbability:
        """The most probable class."""
        return self.classes[0]
