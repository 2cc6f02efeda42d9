"""Builds models from the description in a file, and checks the description."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

from torch import Tensor, nn

from t2t.config import convert
from t2t.errors import UserError, first_line
from t2t.models.blocks import MIXERS, MLPS
from t2t.models.checkpoint_io.adapt import describe_differences
from t2t.models.checkpoint_io.description import Description
from t2t.models.checkpoint_io.published import translate
from t2t.models.config import ModelConfig
from t2t.models.create import as_plain, as_size, create_model, timm_input
from t2t.models.positions import POSITIONS
from t2t.models.tokenizers import TOKENIZERS
from t2t.models.vit import VisionTransformer
from t2t.models.without_weights import without_weights
from t2t.registry import UnknownName
from t2t.user_code import FOLDER, changed_file

MAX_BUFFER_BYTES = 2**30
"""Limit on buffers that a model computes and does not store."""


def describe(
    model: nn.Module, name: str, settings: Mapping[str, Any] | None
) -> dict[str, Any]:
    """How to rebuild a model: its config, or its timm name and settings."""
    if isinstance(model, VisionTransformer):
        return {"name": name, "config": model.config}
    name = name or getattr(model, "pretrained_cfg", {}).get("architecture", "")
    if not name:
        raise UserError(
            f"{type(model).__name__} is not a model of t2t or timm; pass the name with "
            "which create_model builds it."
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
    """Builds the described model, with changes that are not None."""
    changes = {key: value for key, value in changes.items() if value is not None}
    if description.config is not None:
        hints = get_type_hints(ModelConfig)
        for key, value in changes.items():
            given = as_size(value) if key == "image_size" else as_plain(value)
            changes[key] = convert(given, hints[key], key)
        config = replace(description.config, **changes)
        return VisionTransformer(config, awaits_weights)
    return create_model(**{**description.settings, **changes})


def code_note(description: Description, path: str | os.PathLike[str]) -> str:
    """A sentence if a run's model has parts of a user's file that has changed since."""
    config = description.config
    if config is None or (
        config.tokenizer in TOKENIZERS.built_in
        and config.positions in POSITIONS.built_in
        and config.mixer in MIXERS.built_in
        and config.mlp in MLPS.built_in
    ):
        return ""
    folder = Path(path).expanduser()
    folder = folder if folder.is_dir() else folder.parent
    name = changed_file(folder)
    if not name:
        return ""
    return (
        f"It was trained with another {name} than the one in use, so it may compute "
        f"something else; its own is {folder / FOLDER / name}."
    )


def check_rebuilds(model: nn.Module, description: Description) -> None:
    """Raises an error if the saved model could not be loaded again."""
    with without_weights():
        again = build(description)
    differences = describe_differences(model.state_dict(), again.state_dict())
    if differences:
        raise UserError(
            "The model differs from what its name and settings build, so it could not "
            f"be loaded again: {differences}; pass the name and settings that it was "
            "created with."
        )


def check_described(
    description: Description, tensors: Mapping[str, Tensor], origin: str
) -> None:
    """Raises an error if the tensors are not those of the described model.

    It compares shapes on the meta device, before any memory is allocated.
    """
    try:
        with without_weights():
            model = build(description, awaits_weights=True)
    except UnknownName as error:
        raise UserError(
            f"{origin} was made with {error.what}, which is not part of t2t. "
            + (
                error.hint.strip()
                or "Add --code FILE.py with the file that registers "
                "it, or import that file first in Python."
            )
        ) from error
    # Values out of range can raise any of these.
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(
            f"{origin} describes a model that cannot be built: "
            f"{first_line(error).rstrip('.')}; download or copy it again."
        ) from error
    state = model.state_dict()
    is_ours = description.config is not None
    differences = describe_differences(
        translate(tensors) if is_ours else dict(tensors), state
    )
    if differences:
        raise UserError(
            f"{origin} does not hold the model that it describes: {differences}; "
            "download or copy it again."
        )
    computed = sum(
        buffer.nbytes for name, buffer in model.named_buffers() if name not in state
    )
    if computed > MAX_BUFFER_BYTES:
        raise UserError(
            f"{origin} describes a model with {computed / 2**30:.1f} GiB of buffers "
            f"beside its weights; at most {MAX_BUFFER_BYTES / 2**30:.0f} are allowed."
        )
