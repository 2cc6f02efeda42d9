"""Parses the arguments of a command; a mistake is an error of one sentence."""

import functools
import inspect
import io
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from inspect import Parameter
from typing import Any

import tyro
from tyro.conf import DisallowNone, FlagCreatePairsOff

from t2t.commands.options import SetOption
from t2t.errors import UserError, suggest

Options = Mapping[str, Parameter]

PARSING = (FlagCreatePairsOff, DisallowNone)
REPEATABLE = ("--set", "--log", "--code", "--compare")


def parse(
    name: str, command: Callable[..., None], words: Sequence[str]
) -> dict[str, Any]:
    """The keyword arguments that the words of a command line give to a command."""

    @functools.wraps(command)
    def collect(**values: Any) -> dict[str, Any]:
        return values

    parameters = inspect.signature(command).parameters
    options = {
        f"--{key.rstrip('_').replace('_', '-')}": parameter  # `from_` is --from
        for key, parameter in parameters.items()
        if parameter.kind is Parameter.KEYWORD_ONLY
    }
    given = given_options(name, words, options)
    printed = io.StringIO()
    try:
        with redirect_stderr(printed), wide_terminal():
            values, unknown = tyro.cli(
                collect,
                args=words,
                add_help=False,
                config=PARSING,
                return_unknown_args=True,
            )
    except SystemExit:
        message = explain_error(name, printed.getvalue(), options)
        raise UserError(message) from None
    if unknown:
        lists = [
            key
            for key, parameter in parameters.items()
            if parameter.kind is not Parameter.KEYWORD_ONLY
            and isinstance(values[key], tuple)
        ]
        if not lists:
            raise UserError(explain_extra(name, unknown[0], options))
        # tyro ends a list at an option: t2t predict runs/own --top 3 cat.jpg
        values[lists[0]] += tuple(unknown)
    for option in given:
        if values[options[option].name] in ("", ()):
            raise UserError(f"{option} needs a value; `t2t {name} --help` explains it.")
    for key, value in values.items():
        texts = value if isinstance(value, tuple) else (value,)
        if "" in texts and parameters[key].default != "":
            raise UserError(f"A value is empty; `t2t {name} --help` gives examples.")
    return values


def option_in(word: str) -> str:
    """The option in a word of the command line, written as in the help."""
    return word.partition("=")[0].replace("_", "-")


def given_options(name: str, words: Sequence[str], options: Options) -> list[str]:
    """The options among the words.

    Raises errors for unknown options, which tyro would report last, and for options
    given twice and values of flags, which it would ignore.
    """
    given: list[str] = []
    for before, word in zip(["", *words], words, strict=False):
        if not re.match(r"--?[^\W\d]", word):  # a negative number is a value
            continue
        option = option_in(word)
        if option not in options:
            if option_in(before) in options and not word.startswith("--"):
                raise UserError(f"{word} looks like an option; write {before}={word}.")
            hint = suggest_option(name, word, options)
            raise UserError(f"t2t {name} has no option {word.partition('=')[0]}.{hint}")
        if option in given and option not in REPEATABLE:
            raise UserError(f"{option} is given twice; give it once.")
        if "=" in word and isinstance(options[option].default, bool):
            raise UserError(f"{option} takes no value; write {option}.")
        given.append(option)
    return given


@contextmanager
def wide_terminal() -> Iterator[None]:
    """Keeps tyro from breaking the lines of its errors."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "10000"
    try:
        yield
    finally:
        os.environ.pop("COLUMNS")
        if before is not None:
            os.environ["COLUMNS"] = before


def explain_error(name: str, error: str, options: Options) -> str:
    """tyro's error, several lines in a box, as one sentence."""
    if "Missing from" in error:
        # Names are indented by five columns, what they mean by nine.
        missing = re.findall(r"^\W {5}(\S.*?) *\W?$", error, re.MULTILINE)
        needed = " and ".join(missing)
        return f"t2t {name} needs {needed}; `t2t {name} --help` gives examples."
    if found := re.search(r"Missing value for argument '(\S+)'", error):
        return f"{found[1]} needs a value; `t2t {name} --help` explains it."
    if found := re.search(r"invalid choice '(.*)' for argument '(\S+)'(.*)", error):
        choices = sorted({*re.findall(r"'([\w-]+)'", found[3])} - {"None"})
        return f"{found[2]} takes {', '.join(choices)}; got {found[1]}."
    if found := re.search(r"Error parsing (\S+): (.*)", error):
        annotation = str(options[found[1]].annotation.__origin__)
        kinds = {"int": "whole numbers", "float": "numbers", "": "something else"}
        kind = next(kind for text, kind in kinds.items() if text in annotation)
        values = " ".join(re.findall(r"'([^']*)'", found[2]))
        return f"{found[1]} takes {kind}; got {values}."
    return f"t2t {name} cannot parse this; see `t2t {name} --help`."


def explain_extra(name: str, word: str, options: Options) -> str:
    """The error for an unexpected argument."""
    advice = f"`t2t {name} --help` gives examples."
    if "--data" in options and os.path.isdir(word):
        advice = f"write --data {shlex.quote(word)} for images in that folder."
    if word.endswith(".tar"):  # most likely the shell has expanded the pattern
        advice = "name several shards by a pattern in quotes: 't-{000..009}.tar'."
    return f"t2t {name} does not take the argument {word!r}; {advice}"


def suggest_option(name: str, word: str, options: Options) -> str:
    """A closing sentence on an unknown option: what may be meant."""
    if os.path.lexists(word):
        return f" To name the file, write ./{word}."
    if "--set" in options and options["--set"].annotation is SetOption:
        from t2t.config import settings_named
        from t2t.training.recipe import Recipe

        fields = settings_named(Recipe, option_in(word)[2:].replace("-", "_"))[:3]
        if fields:
            meant = " or ".join(f"--set {field}=VALUE" for field in fields)
            return f" Did you mean {meant}?"
    return suggest(option_in(word), options) or f" `t2t {name} --help` lists them."
