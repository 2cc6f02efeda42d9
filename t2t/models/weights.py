"""Loads models from our files, published files, and files of timm models."""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from t2t.errors import UserError, first_line
from t2t.models.checkpoint_io.adapt import adapt_weights, shorten
from t2t.models.checkpoint_io.checkpoints import Checkpoint, non_finite, read_checkpoint
from t2t.models.checkpoint_io.checksum import tensors_checksum
from t2t.models.checkpoint_io.description import Description
from t2t.models.checkpoint_io.heads import Classes
from t2t.models.checkpoint_io.identify import config_for_file, identify
from t2t.models.checkpoint_io.published import translate
from t2t.models.config import ModelConfig, Size
from t2t.models.create import name_in_timm
from t2t.models.rebuild import build, check_described, code_note
from t2t.models.saving import check_class_names, save, unwrap
from t2t.models.vit import VisionTransformer
from t2t.models.zoo import CONFIGS

__all__ = ["LoadReport", "load", "load_weights", "load_with_report", "save"]

logger = logging.getLogger("t2t")


@dataclass(frozen=True, kw_only=True)
class LoadReport:
    """What was loaded, and what was changed to make it fit."""

    path: str
    weights: str
    """Which of the file's weights were loaded, such as state_dict_ema."""
    name: str = ""
    class_names: tuple[str, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)
    """What was saved with the model."""
    notes: tuple[str, ...] = ()
    """Changes and warnings, a sentence each."""
    kept: tuple[str, ...] = ()
    """What was kept although it could have been replaced, a sentence each."""
    num_tensors: tuple[int, int] = (0, 0)
    """How many of the model's tensors come from the file, and how many it has."""
    non_finite: tuple[str, ...] = ()
    """Names of tensors with NaN or infinity."""
    new_heads: tuple[str, ...] = ()
    """Names of heads that do not come from the file."""
    checksum: str = ""
    """Checksum of the file's tensors, if computed."""

    def __str__(self) -> str:
        kind = "" if self.weights == "weights" else f" ({self.weights})"
        model = f" as {self.name}" if self.name else ""
        taken, all_of_them = self.num_tensors
        share = f"all {taken}" if taken == all_of_them else f"{taken} of {all_of_them}"
        return " ".join(
            [
                f"Loaded {self.path}{kind}{model}: {share} tensors.",
                *self.kept,
                *self.notes,
            ]
        )


def load(
    path: str | os.PathLike[str],
    *,
    model: str | ModelConfig | None = None,
    num_classes: int | None = None,
    class_names: Sequence[str] | None = None,
    image_size: int | Size | None = None,
    in_channels: int | None = None,
    drop_path: float | None = None,
    ema: bool = True,
) -> nn.Module:
    """The model in a file, run folder or URL, `hf-hub:owner/name` or `builtin`.

    It is in eval mode. Another number of classes, or `class_names` other than the
    file's, replace the head; another image size interpolates the positions; the logger
    `t2t` reports it. `model` names the model if the file does not.
    """
    return load_with_report(
        path,
        model=model,
        num_classes=num_classes,
        class_names=class_names,
        image_size=image_size,
        in_channels=in_channels,
        drop_path=drop_path,
        ema=ema,
    )[0]


def load_with_report(
    path: str | os.PathLike[str],
    *,
    model: str | ModelConfig | None = None,
    class_names: Sequence[str] | None = None,
    ema: bool = True,
    checksum: bool = False,
    **changes: Any,
) -> tuple[nn.Module, LoadReport]:
    """Like `load`, and also returns a report of what was loaded, kept and changed."""
    if not isinstance(model, str | ModelConfig | None):
        raise UserError(
            f"model={model!r} must be a name of `t2t models` or timm, or a ModelConfig."
        )
    if class_names is not None:
        changes["num_classes"] = changes.get("num_classes") or len(class_names)
    checkpoint = read_checkpoint(path, ema=ema)
    description, note = description_for(checkpoint, model)
    built = build(description, awaits_weights=True, **changes)
    note = note or code_note(description, path)
    report = put_weights(built, checkpoint, description, class_names, note)
    if checksum:
        report = replace(report, checksum=tensors_checksum(checkpoint.tensors))
    log_report(report)
    return built.eval(), report


def load_weights(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    class_names: Sequence[str] | None = None,
    ema: bool = True,
) -> LoadReport:
    """Loads the weights of a file into a model; if they do not fit, it is unchanged.

    With the `class_names` of the data, the head is kept only if the file has the same
    classes; without, if it has the same number of classes.
    """
    report = load_checkpoint(model, read_checkpoint(path, ema=ema), class_names)
    log_report(report)
    return report


def load_checkpoint(
    model: nn.Module, checkpoint: Checkpoint, class_names: Sequence[str] | None
) -> LoadReport:
    """Loads a checkpoint that was read already, as `load_weights` does."""
    model = unwrap(model)
    description = checkpoint.description or Description()
    if description.config is None:
        with refusing_damage(checkpoint.origin):
            config = config_by_name(checkpoint, model)
        description = replace(description, config=config)
    return put_weights(model, checkpoint, description, class_names)


def put_weights(
    model: nn.Module,
    checkpoint: Checkpoint,
    description: Description,
    class_names: Sequence[str] | None,
    note: str = "",
) -> LoadReport:
    """Adapts a checkpoint to a model, loads it and reports what was done."""
    if class_names is not None:
        check_class_names(model, class_names)
    with refusing_damage(checkpoint.origin):
        adapted = adapt_weights(
            model,
            checkpoint.tensors,
            description.config,
            checkpoint.origin,
            Classes(description.class_names, class_names),
        )
    adapted.apply()
    broken = non_finite(adapted.state)
    notes = [note, *adapted.notes, non_finite_note(broken)]
    return LoadReport(
        path=checkpoint.origin,
        weights=checkpoint.weights,
        name=description.name,
        class_names=description.class_names,
        extra=description.extra,
        notes=tuple(each for each in notes if each),
        kept=adapted.kept,
        num_tensors=(adapted.num_loaded, len(adapted.state)),
        non_finite=tuple(broken),
        new_heads=adapted.new_heads,
    )


@contextmanager
def refusing_damage(origin: str) -> Iterator[None]:
    """Turns errors of operations on damaged tensors into a message about the file."""
    try:
        yield
    except UserError:
        raise
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        raise UserError(
            f"{origin} is damaged, or of another model: its tensors have impossible "
            f"shapes ({type(error).__name__}: {first_line(error)})."
        ) from error


def description_for(
    checkpoint: Checkpoint, model: str | ModelConfig | None
) -> tuple[Description, str]:
    """What to build for a checkpoint, and a note if that is not certain."""
    known = checkpoint.description or Description()
    origin = checkpoint.origin
    with refusing_damage(origin):
        if model is None and checkpoint.description is not None:
            check_described(known, checkpoint.tensors, origin)
            return known, ""
        if isinstance(model, str) and model not in CONFIGS:
            settings = {"name": model, **timm_settings(model, checkpoint)}
            return replace(known, config=None, name=model, settings=settings), ""
        state = translate(checkpoint.tensors)
        if model is None:
            name, config, note = identify(state, checkpoint.hint, origin)
            return replace(known, config=config, name=name), note
        name, named = (model, CONFIGS[model]) if isinstance(model, str) else ("", model)
        return replace(
            known, config=config_for_file(named, state, origin), name=name
        ), ""


def config_by_name(checkpoint: Checkpoint, model: nn.Module) -> ModelConfig | None:
    """The config of a file without description, if its name identifies it."""
    if not isinstance(model, VisionTransformer):
        return None
    try:
        state = translate(checkpoint.tensors)
        _, config, note = identify(state, checkpoint.hint, checkpoint.origin)
    except UserError:  # no model of the zoo, but it may fit
        return None
    return None if note else config


def timm_settings(model: str, checkpoint: Checkpoint) -> dict[str, Any]:
    """The number of classes of one of timm's networks, as its file has it."""
    import timm

    classifier = timm.get_pretrained_cfg_value(name_in_timm(model), "classifier")
    head = classifier if isinstance(classifier, str) else (classifier or ("",))[0]
    weight = checkpoint.tensors.get(f"{head}.weight")
    return {} if weight is None else {"num_classes": len(weight)}


def non_finite_note(names: Sequence[str]) -> str:
    """A sentence on tensors that hold NaN or infinity, if there are any."""
    if not names:
        return ""
    return (
        f"NaN or infinity in {len(names)} of its tensors ({shorten([*names])}): the "
        "model's outputs are meaningless."
    )


def log_report(report: LoadReport) -> None:
    """Logs the report, as a warning if anything was changed."""
    logger.log(logging.WARNING if report.notes else logging.INFO, "%s", report)
