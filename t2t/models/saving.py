"""Saves a model and its config, class names and preprocessing in one file."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import nn

import t2t
from t2t.atomic import atomic_file
from t2t.errors import UserError, first_line
from t2t.models.checkpoint_io.checksum import write_with_checksum
from t2t.models.checkpoint_io.description import Description
from t2t.models.checkpoint_io.resolve import FILE_NAME
from t2t.models.rebuild import check_rebuilds, describe

OTHER_FORMATS = {
    *("bin", "ckpt", "gguf", "h5", "keras", "msgpack", "npy", "npz", "onnx", "pickle"),
    *("pkl", "pt", "pt2", "pth", "safetensor", "tar", "tflite", "zip"),
}
"""Suffixes of other formats, which are not folder names."""


def save(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    name: str = "",
    class_names: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Path:
    """Writes a model and all that `load` needs into one file, atomically.

    A path without `.safetensors` is a folder and gets a `model.safetensors`. `settings`
    are the arguments of `create_model`, for timm models that were built with others.
    """
    model = unwrap(model)
    file = file_to_save(path)
    check_class_names(model, class_names)
    description = Description(
        class_names=tuple(class_names),
        extra=dict(extra or {}),
        **describe(model, name, settings),
    )
    check_rebuilds(model, description)
    for key, tensor in model.state_dict().items():
        if tensor.is_meta:
            raise UserError(
                f"{key} lies on the device meta and has no values: load or initialise "
                "the weights before saving."
            )
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
            write_with_checksum(state, part, metadata)
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"{file} could not be written ({write_reason(error)}): free some space, or "
            "name another place."
        ) from error
    return file


def write_reason(error: BaseException) -> str:
    """Why a file could not be written, in a few words."""
    reason = getattr(error, "strerror", None) or first_line(error)
    return str(reason).removeprefix("Error while serializing: ")


def file_to_save(path: str | os.PathLike[str]) -> Path:
    """The file to write for a path: the file itself, or one in a folder."""
    file = Path(path).expanduser()
    ending = file.suffix.lower().removeprefix(".")
    if ending in OTHER_FORMATS and not file.is_dir():
        name = file.name.partition(".")[0]
        raise UserError(
            f"{path} is a {file.suffix} file, but models are saved as safetensors: use "
            f"{file.with_name(name)}.safetensors, or a folder."
        )
    return file if ending == "safetensors" else file / FILE_NAME


def check_class_names(model: nn.Module, class_names: Sequence[str]) -> None:
    """Raises an error unless there is one name for each class, or none."""
    if isinstance(class_names, str):
        raise UserError(
            f"class_names={class_names!r} is a string; pass a list of names."
        )
    for name in class_names:
        if not isinstance(name, str):
            raise UserError(
                f"class_names must be strings, not {name!r}; use str(name)."
            )
    num_classes = getattr(model, "num_classes", None)
    if num_classes is not None and len(class_names) not in (0, num_classes):
        raise UserError(
            f"{len(class_names)} class_names were given, but the model has "
            f"{num_classes} classes; pass one name for each, in the order of its "
            "outputs, or none."
        )


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel and torch.compile."""
    for wrapper in ("_orig_mod", "module"):
        inner = getattr(model, wrapper, None)
        if isinstance(inner, nn.Module):
            return unwrap(inner)
    return model
