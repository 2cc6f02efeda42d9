"""Options that several commands share, and checks of their values."""

import errno
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from tyro.conf import Positional, UseAppendAction, arg

from t2t.config import MAX_IMAGE_SIDE
from t2t.data.decoding.damage import DEFAULT_MAX_DAMAGED, MIN_LIMIT
from t2t.data.decoding.headers import DEFAULT_MAX_PIXELS, MAX_PIXELS_LIMIT
from t2t.errors import UserError, on_one_line
from t2t.log_level import LogLevel, prints_warnings
from t2t.log_level import log_level as at_log_level
from t2t.torchrun import env_count
from t2t.user_code import load_code

INTERRUPTED = 130
"""Exit code of an interrupted run, as in a shell."""

Count = TypeVar("Count", int, int | None)


def option(
    help: str, default: str = "", metavar: str | None = None, name: str | None = None
) -> Any:
    """An option's help; `default` is the note on its default value, if any.

    `name` is the option's, if Python does not allow it for the parameter.
    """
    return arg(help=help, help_behavior_hint=default, metavar=metavar, name=name)


DeviceOption = Annotated[
    str | None,
    option("Device: cuda, mps or cpu.", "(default: the best available)", "DEVICE"),
]
DEFAULT_PRECISION = "(default: bf16 on CUDA, fp16 on GPUs before Ampere, else fp32)"
PrecisionOption = Annotated[
    str | None,
    option(
        "Precision: bf16, fp16 or fp32.",
        DEFAULT_PRECISION,
        "PRECISION",
    ),
]
CompileOption = Annotated[
    Literal["auto", "on", "off"],
    option(
        "Compile the step: on, off, or auto, once it saves more time than it costs.",
        "(default: auto)",
    ),
]
MaxPixelsOption = Annotated[
    int,
    option(
        "Skip images with more pixels than this.",
        f"(default: {DEFAULT_MAX_PIXELS})",
        "N",
    ),
]
MaxDamagedOption = Annotated[
    str,
    option(
        "Stop if more images than this are damaged: a share or a number.",
        f"(default: {DEFAULT_MAX_DAMAGED}, at least {MIN_LIMIT})",
        "N|N%",
    ),
]
WEIGHTS = (
    "A run folder, a file of weights, builtin, a timm model's name, a URL or "
    "hf-hub:owner/name"
)
"""What every command takes as weights."""
WeightsArgument = Annotated[
    Positional[str], option(f"{WEIGHTS}.", "(required)", "WEIGHTS")
]
BatchSizeOption = Annotated[
    int, option("Images per forward pass.", "(default: 256)", "N")
]
ModelOption = Annotated[
    str | None,
    option("The architecture, if the file of weights does not name it.", "", "NAME"),
]
JsonFlag = Annotated[bool, option("Print JSON, for programs.")]

LabelsOption = Annotated[
    UseAppendAction[tuple[str, ...]],
    option(
        "A table of paths and labels: .csv, .tsv, .json or .jsonl.",
        "(default: class folders, or labels.csv if present)",
        "FILE",
    ),
]
LabelColumnsOption = Annotated[
    str | None,
    option(
        "The columns of the table, as path=file,label=breed (or split=part).",
        "(default: found by their names)",
        "COLUMNS",
    ),
]
LabelPatternOption = Annotated[
    str | None,
    option(
        "Where labels are in paths: '{label}_*.jpg', or '{label}/*' for the folder "
        "of each image.",
        "",
        "PATTERN",
    ),
]

SetOption = Annotated[
    UseAppendAction[tuple[str, ...]],
    option("Set any field of the recipe.", "(repeatable)", "FIELD=VALUE"),
]

CodeOption = Annotated[
    UseAppendAction[tuple[str, ...]],
    option(
        "Import your own file, which registers parts of the recipe, model or data.",
        "(repeatable)",
        "FILE.py",
    ),
]


ImageSizeOption = Annotated[
    str | None,
    option(
        "Image size, as 224 or 192x256 (height first).",
        "(default: that of the model)",
        "SIZE",
    ),
]

LogLevelOption = Annotated[
    LogLevel,
    option(
        "What to print beside results: debug (also messages of libraries, and "
        "tracebacks), info, warning (no progress) or error.",
        "(default: info)",
    ),
]


def with_log_level(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the option --log-level."""

    @functools.wraps(command)
    def run(*words: Any, log_level: LogLevel = "info", **options: Any) -> None:
        with at_log_level(log_level):
            command(*words, **options)

    signature = inspect.signature(command)
    added = Parameter(
        "log_level", Parameter.KEYWORD_ONLY, default="info", annotation=LogLevelOption
    )
    parameters = [*signature.parameters.values(), added]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {**command.__annotations__, "log_level": LogLevelOption}
    del run.__wrapped__  # tyro would read its options
    return run


def run_code(files: Iterable[str]) -> None:
    """Runs the user's own files."""
    for file in files:
        load_code(file)


def warn(*sentences: str) -> None:
    """Prints sentences to standard error."""
    if prints_warnings():
        for sentence in sentences:
            print(f"t2t: {sentence}", file=sys.stderr)


def warn_skipped(damaged: Iterable[str]) -> None:
    """Prints the names of the images that could not be read."""
    warn(*(f"Skipped a damaged image: {on_one_line(name)}" for name in damaged))


def check_single_process(command: str) -> None:
    """Raises an error if torchrun starts several processes."""
    if (world_size := env_count("WORLD_SIZE")) > 1:
        raise UserError(
            f"`{command}` runs as one process, but WORLD_SIZE={world_size} is set; "
            "start it without torchrun, or unset WORLD_SIZE."
        )


def at_least(least: int, option: str, number: Count) -> Count:
    """The value of an option; raises an error if it is given and too small."""
    if number is not None and number < least:
        raise UserError(f"{option} {number} is too small: give {least} or more.")
    return number


def at_most(most: int, option: str, number: Count) -> Count:
    """The value of an option; raises an error if it is given and too large."""
    if number is not None and number > most:
        raise UserError(f"{option} {number} is too large: give {most} or less.")
    return number


def check_max_pixels(number: int) -> None:
    """Raises an error unless the limit is from 1 to MAX_PIXELS_LIMIT."""
    at_most(MAX_PIXELS_LIMIT, "--max-pixels", at_least(1, "--max-pixels", number))


def check_picture(picture: str | None) -> None:
    """Raises an error if a picture has another format or cannot be written."""
    if picture is None:
        return
    if not picture.lower().endswith((".png", ".pdf", ".svg")):
        raise UserError(f"--picture {picture} must end in .png, .pdf or .svg.")
    check_writable("--picture", Path(picture).expanduser())


def check_writable(option: str, path: Path) -> None:
    """Raises an error before the work if a file cannot be written."""
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not path.parent.exists():
            raise UserError(
                f"{option} {path} cannot be written: there is no folder {path.parent}; "
                "create it, or name another file."
            )
        trial = path.with_name(f".{path.name}.trial")
        trial.touch()
        trial.unlink(missing_ok=True)  # several processes may try at once
    except OSError as error:
        raise UserError(
            f"{option} {path} cannot be written ({error.strerror}); name another file."
        ) from error


def parse_size(text: str) -> tuple[int, int]:
    """Height and width from `224` or `192x256`."""
    numbers = text.lower().replace("×", "x").split("x")
    if not all(number.strip().isdecimal() for number in numbers) or len(numbers) > 2:
        raise UserError(
            f"--image-size {text} is not a size; write 224 or, height first, 192x256."
        )
    height, width = (
        at_most(
            MAX_IMAGE_SIDE,
            "--image-size",
            at_least(1, "--image-size", int(numbers[each])),
        )
        for each in (0, -1)
    )
    return height, width
