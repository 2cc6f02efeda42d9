"""The words of a command line, checked against a verb's signature before it is read.

What follows the `*` of a signature is an option, what comes before it a place.
"""

import inspect
import os
import types
from collections.abc import Callable
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tyro.conf import UseAppendAction

from t2t.errors import UserError, suggest

HELP = ("-h", "--help")
NUMBERS: dict[Any, str] = {int: "a whole number", float: "a number"}
APPENDING = get_args(UseAppendAction[str])[1]


def check(name: str, command: Callable[..., None], words: list[str]) -> None:
    """Refuses what a verb does not take, in one sentence."""
    if any(word in HELP for word in words):
        return
    hints = get_type_hints(command, include_extras=True)
    parameters = inspect.signature(command).parameters
    options = {
        f"--{key.replace('_', '-')}": hints[key]
        for key, each in parameters.items()
        if each.kind is each.KEYWORD_ONLY
    }
    places = {
        key: hints[key]
        for key, each in parameters.items()
        if each.kind is not each.KEYWORD_ONLY
    }
    left, given = take_options(name, options, words)
    required = {k for k, each in parameters.items() if each.default is each.empty}
    check_places(name, places, required, left)
    # Of a path it would be the folder that one stands in.
    if "" in left and all(parameters[key].default != "" for key in places):
        raise UserError(f"A name is empty; `t2t {name} --help` gives examples.")
    for option in options.keys() - given.keys():
        if option[2:].replace("-", "_") in required:
            raise UserError(
                f"t2t {name} needs {option} {metavar(options[option])}; `t2t {name} "
                "--help` gives examples."
            )


def take_options(
    name: str, options: dict[str, Any], words: list[str]
) -> tuple[list[str], dict[str, list[str]]]:
    """Checks options with their values; what else was said, and the options given."""
    left: list[str] = []
    given: dict[str, list[str]] = {}
    rest = list(words)
    while rest:
        said = rest.pop(0)
        word, equals, text = said.partition("=")
        if not word.startswith("-") or word == "-":
            left.append(said)
            continue
        option = word.replace("_", "-")
        if option not in options:
            if os.path.lexists(said):
                hint = f" To name what is called so here, write ./{said}."
            else:
                hint = suggest_setting(option, options) or suggest(option, options)
                hint = hint or f" `t2t {name} --help` lists them."
            raise UserError(f"t2t {name} has no option {word}.{hint}")
        hint_of_option = options[option]
        plain, many = plain_type(hint_of_option)
        if plain is bool:
            if equals:
                raise UserError(f"{option} takes no value; leave out ={text}.")
            given[option] = []
            continue
        values = [text] if equals else []
        while rest and (many or not values) and not is_option(rest[0]):
            values.append(rest.pop(0))
        if not values or "" in values:
            wanted = metavar(hint_of_option)
            raise UserError(f"{option} needs a value: {option} {wanted}.")
        for value in values:
            check_value(option, plain, value)
            if plain not in NUMBERS and not equals and value[:1] == "-" != value:
                raise UserError(f"{value} reads as an option; write {option}={value}.")
        before = given.get(option, [])
        if APPENDING in unwrap(hint_of_option)[1]:
            if metavar(hint_of_option).endswith("=VALUE"):
                check_set_alike(option, before, values)
            values = [*before, *values]
        else:
            check_said_alike(option, before or values, values, many)
        given[option] = values
    return left, given


def check_said_alike(
    option: str, before: list[str], values: list[str], many: bool
) -> None:
    """Raises an error if an option is given twice with different values."""
    if values == before:
        return
    if many:
        raise UserError(
            f"{option} is given twice; write {option} {' '.join([*before, *values])}."
        )
    raise UserError(
        f"{option} {' '.join(before)} and {option} {' '.join(values)} contradict each "
        "other; give one of them."
    )


def check_set_alike(option: str, before: list[str], values: list[str]) -> None:
    """Raises an error if a repeatable option sets one field to two values."""
    for value in values:
        name, _, text = value.partition("=")
        for other in before:
            other_name, _, other_text = other.partition("=")
            names = {each.strip().replace("-", "_") for each in (name, other_name)}
            if len(names) == 1 and text.strip() != other_text.strip():
                raise UserError(
                    f"{option} {other} and {option} {value} contradict each other; "
                    "give one of them."
                )


def suggest_setting(option: str, options: dict[str, Any]) -> str:
    """A closing sentence where what looks like an option is a field of the recipe."""
    if metavar(options.get("--set")) != "FIELD=VALUE":
        return ""
    from t2t.config import all_settings
    from t2t.training.recipe import Recipe

    name = option.lstrip("-").replace("-", "_")
    fields = [each for each in all_settings(Recipe) if f".{each}".endswith(f".{name}")]
    meant = " or ".join(f"--set {each}=VALUE" for each in fields[:3])
    return f" Did you mean {meant}?" if meant else ""


def is_option(word: str) -> bool:
    """Whether a word begins another option; a negative number does not."""
    return word.startswith("--") or word in HELP


def check_places(
    name: str, places: dict[str, Any], required: set[str], left: list[str]
) -> None:
    """Refuses too many words, or too few."""
    takes_any = any(plain_type(hint)[1] for hint in places.values())
    if len(left) > len(places) and not takes_any:
        word = left[len(places)]
        advice = f"`t2t {name} --help` gives examples."
        if word.endswith(".tar"):  # most likely the shell has read the pattern
            advice = "name several shards by a pattern in quotes: 't-{000..009}.tar'."
        raise UserError(f"t2t {name} does not know what {word!r} is for; {advice}")
    missing = [
        metavar(hint)
        for key, hint in list(places.items())[len(left) :]
        if key in required and not plain_type(hint)[1]
    ]
    if missing:
        raise UserError(
            f"t2t {name} needs {' and '.join(missing)}; `t2t {name} --help` gives "
            "examples."
        )


def check_value(option: str, plain: Any, value: str) -> None:
    """Refuses what is no number, or none of the choices, where an option takes such."""
    if plain in NUMBERS:
        try:
            plain(value)
        except ValueError:
            raise UserError(
                f"{option} {value} will not do: {option} takes {NUMBERS[plain]}."
            ) from None
    elif get_origin(plain) is Literal and value not in get_args(plain):
        allowed = ", ".join(get_args(plain))
        raise UserError(f"{option} {value} will not do: {option} takes {allowed}.")


def plain_type(hint: Any) -> tuple[Any, bool]:
    """What one value of an option is, and whether several may follow one another."""
    bare, marks = unwrap(hint)
    if get_origin(bare) in (Union, types.UnionType):
        bare = next(each for each in get_args(bare) if each is not type(None))
    if get_origin(bare) is tuple:
        return get_args(bare)[0], APPENDING not in marks
    return bare, False


def metavar(hint: Any) -> str:
    """What the help calls a value."""
    _, marks = unwrap(hint)
    told = (getattr(each, "metavar", None) for each in marks)
    return next((each for each in told if each), "VALUE")


def unwrap(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type and all that is noted beside it, layer by layer."""
    marks: tuple[Any, ...] = ()
    while hasattr(hint, "__metadata__"):
        marks += hint.__metadata__
        hint = hint.__origin__
    return hint, marks
