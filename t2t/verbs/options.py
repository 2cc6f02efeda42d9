"""What verbs share: how options are told, and how their words are read."""

import sys
from typing import Annotated, Any, Literal

from tyro.conf import UseAppendAction, arg

from t2t.errors import UserError


def option(help: str, default: str = "", metavar: str | None = None) -> Any:
    """What the help says of an option; its default only where a word is given."""
    return arg(help=help, help_behavior_hint=default, metavar=metavar)


DeviceChoice = Annotated[
    str | None, option("cuda, mps or cpu.", "(default: the best there is)")
]
PrecisionChoice = Annotated[
    str | None, option("bf16, fp16 or fp32.", "(default: bf16 on CUDA, else fp32)")
]
CompileChoice = Annotated[
    Literal["on", "off"] | None,
    option("Compile the model: on or off.", "(default: on with CUDA)"),
]
JsonFlag = Annotated[bool, option("Print JSON, for programs.")]


Overrides = Annotated[
    UseAppendAction[tuple[str, ...]],
    option("Any field of the recipe.", "(repeatable)", "FIELD=VALUE"),
]


def as_bool(choice: Literal["on", "off"] | None) -> bool | None:
    """A switch that may be left alone."""
    return None if choice is None else choice == "on"


def warn(*sentences: str) -> None:
    """Says something beside the result."""
    for sentence in sentences:
        print(f"t2t: {sentence}", file=sys.stderr)


def at_least(least: int, option: str, number: int) -> int:
    """The number given for an option, unless it is too small."""
    if number < least:
        raise UserError(f"{option} {number} is too small: give {least} or more.")
    return number


def parse_size(text: str) -> tuple[int, int]:
    """Height and width from `224` or `192x256`."""
    numbers = text.lower().replace("×", "x").split("x")
    if not all(number.strip().isdecimal() for number in numbers) or len(numbers) > 2:
        raise UserError(
            f"--image-size {text} is not a size; write 224 or, height first, 192x256."
        )
    return int(numbers[0]), int(numbers[-1])
