"""The metadata of an exported model: classes, preprocessing and origin."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Self

from t2t.config import from_json
from t2t.errors import UserError

MAX_SIDE = 4096
"""Largest side of an exported model's images; more means damage."""


@dataclass(frozen=True, kw_only=True)
class ExportMetadata:
    """The metadata of an exported model: each field is one entry, as JSON."""

    model: str
    """Name of the architecture."""
    class_names: tuple[str, ...]
    """In the order of the outputs."""
    readable_names: tuple[str, ...] = ()
    """Class names in words; empty if they are the same."""
    image_size: tuple[int, int]
    """Height and width."""
    channels: int
    mean: tuple[float, ...]
    """Per channel, for pixels from 0 to 1."""
    std: tuple[float, ...]
    crop_fraction: float
    """Share of the resized image that is cropped."""
    interpolation: str = "bicubic"
    multilabel: bool = False
    """Whether an image may have several classes: sigmoid instead of softmax."""
    input: str = "normalised"
    """normalised float32, or uint8 pixels that the graph normalises."""
    output: str = "logits"
    """logits or probabilities."""
    dynamic_image_size: bool = False
    quantization: str = ""
    """How weights and activations became int8; empty for float32."""
    data: str | None = None
    """The training data, if known."""
    t2t_version: str
    parity: str = ""
    """The largest difference from PyTorch, and on which images."""
    accuracy: str = ""
    """Measured accuracy, if labelled images were there."""

    def __post_init__(self) -> None:
        """Raises an error for what no export can have written."""
        sizes = [*self.image_size, self.channels]
        numbers = len(self.mean) == len(self.std) == self.channels
        named = len(self.readable_names) in (0, len(self.class_names))
        known = self.input in ("normalised", "uint8") and self.output in (
            "logits",
            "probabilities",
        )
        fits = min(sizes) >= 1 and max(sizes) <= MAX_SIDE and min(self.std) > 0
        if not (numbers and named and known and fits and 0 < self.crop_fraction <= 1):
            raise UserError("the metadata contradicts itself")

    @property
    def names(self) -> tuple[str, ...]:
        """Class names in words."""
        return self.readable_names or self.class_names

    def to_strings(self) -> dict[str, str]:
        """Each field as JSON, by its name."""
        return {
            name: json.dumps(value, ensure_ascii=False)
            for name, value in asdict(self).items()
        }

    def to_json(self) -> str:
        """All fields as one JSON object."""
        return json.dumps(asdict(self), ensure_ascii=False, indent=1)

    @classmethod
    def from_strings(cls, strings: Mapping[str, str], origin: str) -> Self:
        """The inverse of `to_strings`; other entries are ignored."""
        known = {field.name for field in fields(cls)}
        found = {name: text for name, text in strings.items() if name in known}
        if not {"class_names", "mean", "std", "image_size"} <= found.keys():
            raise UserError(
                f"{origin} does not name its classes and preprocessing: export it "
                "with `t2t export WEIGHTS --to onnx`."
            )
        try:
            return from_json(cls, {key: json.loads(found[key]) for key in found})
        # Deep nesting raises a RecursionError, a long number a ValueError.
        except (ValueError, RecursionError, TypeError) as error:
            raise UserError(
                f"{origin} has damaged metadata ({str(error).rstrip('.')}); export it "
                "again."
            ) from error
