"""What weights say of their model and images, for a run that starts from them."""

import os
from dataclasses import dataclass, fields
from typing import Any

from t2t.errors import UserError
from t2t.models.checkpoint_io.checkpoints import read_checkpoint
from t2t.models.checkpoint_io.checksum import tensors_checksum
from t2t.models.config import ModelConfig, Size
from t2t.models.rebuild import build
from t2t.models.trained import pixels_of
from t2t.models.weights import LoadReport, description_for
from t2t.models.without_weights import without_weights
from t2t.models.zoo import CONFIGS, ZOO

OF_THE_RUN = ("num_classes", "image_size", "in_channels", "drop_path")
"""Options of a model that a recipe sets elsewhere."""


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """The model of some weights, by name and options, and its preprocessing."""

    weights: str
    """The path or name, as the user gave it."""
    checksum: str
    """Checksum of the tensors."""
    model: str
    """A name of `t2t models` or timm."""
    model_args: dict[str, Any]
    """Options in which the model differs from the one of that name."""
    is_ours: bool
    """Whether t2t builds the model, and not timm."""
    image_size: Size
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop_fraction: float
    notes: tuple[str, ...] = ()
    """What is assumed, a sentence each."""


def read_pretrained(
    weights: str | os.PathLike[str], model: str | None = None
) -> Pretrained:
    """Reads what weights say of themselves; `model` names the model if they do not."""
    checkpoint = read_checkpoint(weights)
    known = checkpoint.description
    if known is not None and model not in (None, known.name):
        raise UserError(
            f"{weights} holds weights of {known.name or 'another model'}, not of "
            f"{model}; leave out --set model={model}."
        )
    named = model if known is None else None
    description, note = description_for(checkpoint, named)
    with without_weights():
        network = build(description, awaits_weights=True)
    report = LoadReport(
        path=str(weights), weights=checkpoint.weights, extra=description.extra
    )
    pixels, assumed = pixels_of(network, report)
    name, model_args = description.name, dict[str, Any]()
    if description.config is None:
        # The zoo has some of timm's models under names of its own.
        name = next((key for key in ZOO if ZOO[key].build == name), name)
    else:
        name, model_args = nearest_model(description.name, description.config)
    return Pretrained(
        weights=str(weights),
        checksum=tensors_checksum(checkpoint.tensors),
        model=name,
        model_args=model_args,
        is_ours=description.config is not None,
        notes=tuple(each for each in (note, assumed) if each),
        **pixels,
    )


def nearest_model(name: str, config: ModelConfig) -> tuple[str, dict[str, Any]]:
    """A model of the zoo and the options that make it the given one.

    It is the model of that name, or else the one with the fewest other options.
    """
    if name in CONFIGS:
        return name, options_between(CONFIGS[name], config)
    nearest = min(CONFIGS, key=lambda each: len(options_between(CONFIGS[each], config)))
    return nearest, options_between(CONFIGS[nearest], config)


def options_between(base: ModelConfig, config: ModelConfig) -> dict[str, Any]:
    """The options in which a config differs from a base, without those of a run."""
    return {
        field.name: getattr(config, field.name)
        for field in fields(ModelConfig)
        if field.name not in OF_THE_RUN
        and getattr(config, field.name) != getattr(base, field.name)
    }
