"""Saving models and loading them: our files, published ones, and anyone's of timm."""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

import t2t
from t2t.atomic import atomic_file
from t2t.errors import UserError, first_line
from t2t.models.config import ModelConfig, Size
from t2t.models.create import as_size, create_model, name_in_timm, timm_input
from t2t.models.reading.checkpoints import Checkpoint, Description, read, sort_metadata
from t2t.models.reading.fitting import Fitting, describe_differences, fit
from t2t.models.reading.identify import adapted, identify
from t2t.models.reading.locating import FILE_NAME
from t2t.models.reading.published import translate
from t2t.models.vit import VisionTransformer
from t2t.models.zoo import OURS

logger = logging.getLogger("t2t")


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """What was loaded, and what was changed to make it fit."""

    path: str
    weights: str
    """Which of the file's weights were taken."""
    name: str = ""
    class_names: tuple[str, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)
    """What was saved beside the model."""
    notes: tuple[str, ...] = ()
    """What was changed, a sentence each."""

    def __str__(self) -> str:
        kind = "" if self.weights == "weights" else f" ({self.weights})"
        model = f" as {self.name}" if self.name else ""
        return " ".join([f"Loaded {self.path}{kind}{model}.", *self.notes])


def save(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    name: str = "",
    class_names: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Path:
    """Writes a model and all that `load` needs into one file, whole or not at all.

    A path without `.safetensors` is a folder and gets a `model.safetensors`. `settings`
    are what `create_model` was given, where that cannot be seen on a network of timm's.
    """
    model = unwrap(model)
    file = Path(path).expanduser()
    if file.suffix != ".safetensors":
        file = file / FILE_NAME
    description = Description(
        class_names=tuple(class_names),
        extra=dict(extra or {}),
        **describe(model, name, settings),
    )
    check_rebuilds(model, description)
    state = {
        key: tensor.detach().cpu().contiguous()
        for key, tensor in model.state_dict().items()
    }
    metadata = {
        "format": "pt",
        "t2t": description.to_json(),
        "version": t2t.__version__,
    }
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(file) as part:
            save_file(state, part, metadata)
            sort_metadata(part)
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"{file} could not be written ({first_line(error)})."
        ) from error
    return file


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel and torch.compile."""
    for wrapper in ("_orig_mod", "module"):
        inner = getattr(model, wrapper, None)
        if isinstance(inner, nn.Module):
            return unwrap(inner)
    return model


def describe(
    model: nn.Module, name: str, settings: Mapping[str, Any] | None
) -> dict[str, Any]:
    """How to build a model again: its config, or timm's name and what was set."""
    if isinstance(model, VisionTransformer):
        return {"name": name, "config": model.config}
    name = name or getattr(model, "pretrained_cfg", {}).get("architecture", "")
    if not name:
        raise UserError(
            f"A {type(model).__name__} is neither ours nor timm's; give the name that "
            "create_model builds it by."
        )
    if settings is None:
        in_channels, size = timm_input(model)
        settings = {"num_classes": model.num_classes, "in_channels": in_channels}
        if size is not None:
            settings["image_size"] = size
    return {"name": name, "settings": {"name": name, **settings}}


def build(
    description: Description, awaits_weights: bool = False, **changes: Any
) -> nn.Module:
    """A model as described, with changes; those that are None change nothing."""
    changes = {key: value for key, value in changes.items() if value is not None}
    if description.config is not None:
        if "image_size" in changes:
            changes["image_size"] = as_size(changes["image_size"])
        config = replace(description.config, **changes)
        return VisionTransformer(config, awaits_weights)
    return create_model(**{**description.settings, **changes})


def check_rebuilds(model: nn.Module, description: Description) -> None:
    """Refuses to save what could not be loaded again."""
    with torch.device("meta"):
        again = build(description)
    differences = describe_differences(model.state_dict(), again.state_dict())
    if differences:
        raise UserError(
            "The model is not what its name and settings build, so it could not be "
            f"loaded again: {differences}; give the name and settings it was created "
            "with."
        )


def load(
    path: str | os.PathLike[str],
    *,
    model: str | ModelConfig | None = None,
    num_classes: int | None = None,
    image_size: int | Size | None = None,
    in_channels: int | None = None,
    drop_path: float | None = None,
    averaged: bool = True,
) -> nn.Module:
    """The model in a file, run folder or URL, `hf-hub:owner/name` or `builtin`.

    It is ready to predict. Another number of classes puts a fresh head in place,
    another image size adapts the positions; the logger `t2t` says so. `model` says what
    a file is that does not.
    """
    return load_with_report(
        path,
        model=model,
        num_classes=num_classes,
        image_size=image_size,
        in_channels=in_channels,
        drop_path=drop_path,
        averaged=averaged,
    )[0]


def load_with_report(
    path: str | os.PathLike[str],
    *,
    model: str | ModelConfig | None = None,
    averaged: bool = True,
    **changes: Any,
) -> tuple[nn.Module, Loaded]:
    """Like `load`, with what was loaded and what was changed."""
    checkpoint = read(path, averaged=averaged)
    description, note = described(checkpoint, model)
    built = build(description, awaits_weights=True, **changes)
    fitting = fit(built, checkpoint.tensors, description.config, checkpoint.origin)
    return built.eval(), finish(fitting, checkpoint, description, note)


def load_weights(
    model: nn.Module, path: str | os.PathLike[str], *, averaged: bool = True
) -> Loaded:
    """Puts the weights of a file into a model, unchanged where they do not fit it."""
    checkpoint = read(path, averaged=averaged)
    description = checkpoint.description or Description()
    fitting = fit(
        unwrap(model), checkpoint.tensors, description.config, checkpoint.origin
    )
    return finish(fitting, checkpoint, description, "")


def described(
    checkpoint: Checkpoint, model: str | ModelConfig | None
) -> tuple[Description, str]:
    """What to build for a checkpoint, and a sentence where that was not certain."""
    known = checkpoint.description or Description()
    if model is None and checkpoint.description is not None:
        return known, ""
    origin = checkpoint.origin
    if isinstance(model, str) and model not in OURS:
        settings = {"name": model, **timm_settings(model, checkpoint)}
        return replace(known, config=None, name=model, settings=settings), ""
    state = translate(checkpoint.tensors)
    if model is None:
        name, config, note = identify(state, checkpoint.hint, origin)
        return replace(known, config=config, name=name), note
    name, named = (model, OURS[model]) if isinstance(model, str) else ("", model)
    return replace(known, config=adapted(named, state, origin), name=name), ""


def timm_settings(model: str, checkpoint: Checkpoint) -> dict[str, Any]:
    """The number of classes of one of timm's networks, as its file has it."""
    import timm

    classifier = timm.get_pretrained_cfg_value(name_in_timm(model), "classifier")
    head = classifier if isinstance(classifier, str) else (classifier or ("",))[0]
    weight = checkpoint.tensors.get(f"{head}.weight")
    return {} if weight is None else {"num_classes": len(weight)}


def finish(
    fitting: Fitting, checkpoint: Checkpoint, description: Description, note: str
) -> Loaded:
    """Applies what fits and reports it."""
    fitting.apply()
    loaded = Loaded(
        path=checkpoint.origin,
        weights=checkpoint.weights,
        name=description.name,
        class_names=description.class_names,
        extra=description.extra,
        notes=(*([note] if note else []), *fitting.notes),
    )
    # What was changed is worth seeing without asking for it.
    logger.log(logging.WARNING if loaded.notes else logging.INFO, "%s", loaded)
    return loaded
