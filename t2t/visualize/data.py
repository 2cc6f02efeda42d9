"""What models see in images, as plain data."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from t2t.analysis.attention_maps import Map
from t2t.analysis.feature_maps import ChannelStatistics, FeatureLayer, TokenNorms
from t2t.analysis.first_layer import FirstFilters, PositionMaps
from t2t.models.config import Size
from t2t.shapes import Pixels


@dataclass(frozen=True, kw_only=True)
class ChannelMaps:
    """The maps of some channels of a layer."""

    name: str
    channels: tuple[int, ...]
    values: Float[Tensor, "shown rows columns"]


@dataclass(frozen=True, kw_only=True)
class HeadMaps:
    """Where each attention head of a layer looks, relative to the mean of the map."""

    name: str
    from_output: Float[Tensor, "heads rows columns"]
    """From the tokens that the model's head reads, such as the class token."""
    from_middle: Float[Tensor, "heads rows columns"]
    """From the token in the middle of the image."""


@dataclass(frozen=True, kw_only=True)
class ImageLook:
    """What one model sees in one image."""

    name: str
    pixels: Pixels
    """The model's input before normalisation."""
    prediction: str
    """The best class and its probability; empty for a model without classes."""
    splits: tuple[FeatureLayer, ...]
    """The tokens after every split and after the last block; or all stages of a CNN."""
    features: tuple[ChannelMaps, ...]
    heads: tuple[HeadMaps, ...]
    rollouts: tuple[tuple[str, Map], ...]
    """Attention rollout up to some blocks, the last of them being all."""


@dataclass(frozen=True, kw_only=True)
class HeadDistances:
    """The mean attention distance of each head of a layer, in pixels."""

    name: str
    is_block: bool
    heads: tuple[float, ...]
    uniform: float
    """The distance of attention that looks at all tokens alike."""


@dataclass(frozen=True, kw_only=True)
class ModelLook:
    """What one model sees in all images."""

    weights: str
    model: str
    image_size: Size
    num_parameters: int
    images: tuple[ImageLook, ...]
    """The first ones."""
    channels: tuple[ChannelStatistics, ...]
    norms: tuple[TokenNorms, ...]
    distances: tuple[HeadDistances, ...]
    filters: FirstFilters | None
    positions: PositionMaps | None
    notes: tuple[str, ...]
    """What is assumed, and what does not exist for this model, a sentence each."""

    @property
    def title(self) -> str:
        """The weights and the model's name."""
        path = Path(self.weights)
        name = path.name if path.is_absolute() else self.weights
        return self.model if name == self.model else f"{name} ({self.model})"

    @property
    def num_dead(self) -> int:
        """Dead channels of all layers together."""
        return sum(int(each.dead.sum()) for each in self.channels)

    @property
    def num_channels(self) -> int:
        """Channels of all layers together."""
        return sum(len(each.std) for each in self.channels)

    def as_json(self) -> dict[str, Any]:
        """The numbers as JSON."""
        return {
            "weights": self.weights,
            "model": self.model,
            "image_size": list(self.image_size),
            "num_parameters": self.num_parameters,
            "predictions": {each.name: each.prediction for each in self.images},
            "channels": [
                {
                    "layer": each.name,
                    "num_channels": len(each.std),
                    "num_dead": int(each.dead.sum()),
                    "num_outsized": int(each.outsized.sum()),
                }
                for each in self.channels
            ],
            "token_norms": [
                {
                    "layer": each.name,
                    "mean": round(each.mean, 4),
                    "percentile_5": round(each.low, 4),
                    "percentile_95": round(each.high, 4),
                    "prefix": [round(norm, 4) for norm in each.prefix],
                }
                for each in self.norms
            ],
            "attention_distance": [
                {
                    "layer": each.name,
                    "heads": [round(head, 3) for head in each.heads],
                    "uniform": round(each.uniform, 3),
                }
                for each in self.distances
            ],
            "notes": list(self.notes),
        }


@dataclass(frozen=True, kw_only=True)
class Look:
    """What some models see in the same images."""

    models: tuple[ModelLook, ...]
    num_images: int
    skipped: tuple[str, ...] = ()
    """Why images could not be read, a sentence each."""

    def as_json(self) -> dict[str, Any]:
        """The numbers as JSON."""
        return {
            "num_images": self.num_images,
            "models": [each.as_json() for each in self.models],
            "skipped": list(self.skipped),
        }

    def write(self, folder: str | os.PathLike[str]) -> Path:
        """Writes pictures, numbers and report.html; returns the path of the report."""
        from t2t.visualize.report import write_report

        return write_report(self, Path(folder).expanduser())
