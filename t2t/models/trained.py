"""A trained model with its class names and preprocessing."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from t2t.errors import UserError
from t2t.formatting import last_part
from t2t.models.class_names import imagenet_classes, readable_names
from t2t.models.config import ModelConfig, Size
from t2t.models.create import timm_input
from t2t.models.vit import VisionTransformer
from t2t.models.weights import LoadReport, load_with_report

PUBLISHED_FRACTION = 0.9
"""Share of the resized image that is cropped, as for T2T-ViT, ViT and DeiT."""
PUBLISHED_MEAN = (0.485, 0.456, 0.406)
"""Mean of ImageNet's channels."""
PUBLISHED_STD = (0.229, 0.224, 0.225)
"""Standard deviation of ImageNet's channels."""


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """A model ready to predict, its class names and its preprocessing."""

    model: nn.Module
    name: str
    path: str
    class_names: tuple[str, ...]
    """Names as in the training data; other data is matched by them."""
    image_size: Size
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop_fraction: float
    data: str | None
    """The training data, if the file names it."""
    seed: int = 0
    """The seed that split the data, if it had no validation set."""
    labels: Mapping[str, Any] = field(default_factory=dict)
    """Where the labels of the training data are: `labels` of its recipe, as JSON."""
    is_multilabel: bool = False
    """Whether an image may have several classes: probabilities are then sigmoids."""
    evaluated_on: str | None = None
    """The fingerprint of the validation images, if the file has it."""
    checksum: str = ""
    """Checksum of the file's tensors, if computed."""
    is_complete: bool = True
    """Whether every tensor of the model comes from the file."""
    notes: tuple[str, ...] = ()
    """Assumptions where the file says nothing, a sentence each."""

    @property
    def data_name(self) -> str | None:
        """The training data without its path, which stays on this machine."""
        if self.data is None:
            return None
        return last_part(self.data)

    @property
    def readable_names(self) -> tuple[str, ...]:
        """Class names in words."""
        return readable_names(self.class_names)


def load_trained(
    path: str | os.PathLike[str],
    *,
    model: str | ModelConfig | None = None,
    needs_head: bool = True,
    checksum: bool = False,
    image_size: Size | None = None,
) -> TrainedModel:
    """The model in a file, run folder or URL, `hf-hub:owner/name` or `builtin`.

    Features need no head: without `needs_head`, a model trained without labels will do.
    Another `image_size` interpolates the positions.
    """
    network, loaded = load_with_report(
        path, model=model, checksum=checksum, image_size=image_size
    )
    num_classes = num_outputs(network)
    if num_classes == 0 and needs_head:
        raise UserError(
            f"{path} has no head, so it cannot predict classes: fine-tune it first, "
            f"as by t2t train --data photos/ --from {path}."
        )
    class_names, names_note = names_of(loaded, num_classes)
    pixels, pixels_note = pixels_of(network, loaded)
    if image_size is not None:
        pixels["image_size"] = image_size
    return TrainedModel(
        model=network,
        name=loaded.name or type(network).__name__,
        path=str(path),
        class_names=class_names,
        data=loaded.extra.get("data"),
        seed=loaded.extra.get("seed", 0),
        labels=loaded.extra.get("labels") or {},
        is_multilabel=bool(loaded.extra.get("multilabel", False)),
        evaluated_on=loaded.extra.get("evaluated_on"),
        checksum=loaded.checksum,
        is_complete=loaded.num_tensors[0] == loaded.num_tensors[1],
        notes=tuple(note for note in (names_note, pixels_note) if note),
        **pixels,
    )


def num_outputs(network: nn.Module) -> int:
    """The number of classes of a model."""
    if isinstance(network, VisionTransformer):
        return network.config.num_classes
    return int(network.num_classes)  # type: ignore[arg-type]  # timm's networks have it


def names_of(loaded: LoadReport, num_classes: int) -> tuple[tuple[str, ...], str]:
    """The class names, and a note if they are assumed."""
    if len(loaded.class_names) == num_classes or not num_classes:
        return loaded.class_names[:num_classes], ""
    names = len(loaded.class_names)
    lacks = f"names {names} classes and has" if names else "does not name its"
    note = f"{loaded.path} {lacks} {num_classes}{'' if names else ' classes'}; "
    if num_classes == len(imagenet_classes()):
        return imagenet_classes(), f"{note}ImageNet's are assumed."
    numbered = tuple(f"class {number}" for number in range(num_classes))
    return numbered, f"{note}they are numbered."


def pixels_of(network: nn.Module, loaded: LoadReport) -> tuple[dict[str, Any], str]:
    """The preprocessing of images, and a note if it is assumed."""
    extra = loaded.extra
    assumed = published_pixels(network)
    known = {key: extra[key] for key in assumed if key in extra}
    pixels = {**assumed, **known}
    for key in ("image_size", "mean", "std"):
        pixels[key] = tuple(pixels[key])
    check_pixels(loaded.path, **pixels)
    if {"mean", "std", "crop_fraction"} <= known.keys():
        return pixels, ""
    mean = ", ".join(f"{value:.3g}" for value in pixels["mean"])
    std = ", ".join(f"{value:.3g}" for value in pixels["std"])
    height, width = pixels["image_size"]
    return pixels, (
        f"{loaded.path} does not state its preprocessing; assumed: {height}×{width} "
        f"pixels, center crop {pixels['crop_fraction']:.3g}, mean ({mean}), std "
        f"({std})."
    )


def check_pixels(
    path: str,
    *,
    channels: int,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    **_: Any,
) -> None:
    """Raises an error unless mean and std have one number for each channel."""
    for name, values in (("mean", mean), ("std", std)):
        if len(values) != channels:
            raise UserError(
                f"{path} is for images of {channels} channels, but its {name} has "
                f"{len(values)} numbers; save it again with one for each channel."
            )


def published_pixels(network: nn.Module) -> dict[str, Any]:
    """The preprocessing of published weights: timm's settings, or ImageNet's."""
    if isinstance(network, VisionTransformer):
        config = network.config
        size, channels = config.image_size, config.in_channels
        mean: tuple[float, ...] = PUBLISHED_MEAN
        std: tuple[float, ...] = PUBLISHED_STD
        fraction = PUBLISHED_FRACTION
    else:
        import timm.data

        settings = timm.data.resolve_model_data_config(network)
        mean, std, fraction = settings["mean"], settings["std"], settings["crop_pct"]
        channels, own_size = timm_input(network)
        size = own_size or settings["input_size"][1:]
    if channels != len(mean):
        mean, std = ((sum(each) / len(each),) * channels for each in (mean, std))
    return {
        "image_size": size,
        "channels": channels,
        "mean": mean,
        "std": std,
        "crop_fraction": fraction,
    }
