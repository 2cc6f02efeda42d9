"""Choices by name, which users can add to."""

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

from t2t import user_code
from t2t.errors import UserError

Choice = TypeVar("Choice")
Added = TypeVar("Added")
Part = TypeVar("Part")


class UnknownName(UserError):  # noqa: N818 (it says what is wrong with a name)
    """A name that no registry has; `what` is the slot and the name."""

    def __init__(self, slot: str, name: str, allowed: str, hint: str) -> None:
        super().__init__(f"{slot}={name!r} is not known; allowed: {allowed}.{hint}")
        self.what = f"{slot}={name!r}"
        self.hint = hint


class Registry(dict[str, Choice]):
    """The choices of one slot by name."""

    def __init__(self, slot: str, choices: Mapping[str, Choice]) -> None:
        super().__init__(choices)
        self.slot = slot
        self.built_in = frozenset(choices)
        self.definitions: dict[str, object] = {}
        """The classes and functions that define registered choices."""

    def register(self, name: str) -> Callable[[Added], Added]:
        """A decorator that adds a choice under a name that is free."""
        self.check_name(name)

        def add(choice: Added) -> Added:
            self.add(name, choice, choice)  # type: ignore[arg-type]
            return choice

        return add

    def add(self, name: str, choice: Choice, definition: object) -> None:
        """Adds a choice that a user's class or function defines."""
        self.check_name(name)
        if not callable(definition):
            raise UserError(
                f"{self.slot} {name!r} is a {type(definition).__name__}, and what is "
                "registered is a class or a function."
            )
        is_again = is_defined_again(self.definitions.get(name), definition)
        if name in self and self[name] is not choice and not is_again:
            raise UserError(
                f"{self.slot} {name!r} is registered already ({self.whose(name)}); "
                "choose another name."
            )
        self[name] = choice
        self.definitions[name] = definition
        if user_code.RUNNING:
            user_code.RUNNING[-1].undo.append(lambda: self.pop(name, None))

    def check_name(self, name: object) -> None:
        """Raises an error for what cannot be a name."""
        if callable(name):
            raise UserError(
                f"{getattr(name, '__name__', name)} is registered as {self.slot} "
                "without a name: add it to the decorator, as in "
                "@t2t.register_task('my_own')."
            )
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][\w-]*", name):
            raise UserError(
                f"{self.slot} {name!r} cannot be registered: a name is letters, digits "
                "and _, such as my_own."
            )

    def user_choice(self, name: str) -> str:
        """A user's choice as messages name it; empty for a built-in one."""
        return "" if name in self.built_in else f"{self.slot}={name!r}"

    def whose(self, name: str) -> str:
        """The origin of a registered choice."""
        if name in self.built_in:
            return "t2t's own"
        module = sys.modules.get(getattr(self.definitions.get(name), "__module__", ""))
        file = getattr(module, "__file__", None)
        return Path(file).name if file else "in this session"

    def provide(self, name: str) -> str:
        """Runs the code of an opened run if a name is missing.

        Returns a closing sentence if that code was never run before.
        """
        return user_code.provide(f"{self.slot}={name!r}", lambda: name in self)

    def choose(self, name: str) -> Choice:
        """The choice of that name, from the code of an opened run if need be."""
        if name not in self:
            hint = self.provide(name)
            if name not in self:
                raise UnknownName(self.slot, name, ", ".join(sorted(self)), hint)
        return self[name]

    def build(self, name: str, kind: type[Part], *arguments: Any) -> Part:
        """What a choice returns for these arguments, which must be a `kind`."""
        choice: Any = self.choose(name)
        built = call(f"{self.slot}={name!r}", choice, *arguments)
        if not isinstance(built, kind):
            raise UserError(
                f"{self.slot}={name!r} returns a {type(built).__name__}, not a "
                f"{kind.__name__}; derive its class from {kind.__name__}."
            )
        return built


def call(what: str, function: Callable[..., Added], *arguments: Any) -> Added:
    """What a user's function or class returns; it may not take these arguments."""
    try:
        return function(*arguments)
    except TypeError as error:
        trace = error.__traceback__
        if trace is not None and trace.tb_next is not None:
            raise  # not by the call, but within it
        given = ", ".join(type(each).__name__ for each in arguments)
        raise UserError(
            f"{what} is called with {len(arguments)} argument"
            f"{'s' * (len(arguments) != 1)} ({given}), and does not take them: {error}."
        ) from error


def check_takes(what: str, function: Callable[..., Any], *names: str) -> None:
    """Raises an error if a user's function cannot be called with these arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # not written in Python
        return
    try:
        signature.bind(*names)
    except TypeError as error:
        raise UserError(
            f"{what} is called with ({', '.join(names)}), and {signature} does not "
            f"take them: {error}."
        ) from error


def check_methods(what: str, kind: type, base: type) -> None:
    """Raises an error if a class overrides a method with other arguments."""
    for method, own in vars(base).items():
        if method.startswith("_") or not isinstance(own, FunctionType | classmethod):
            continue
        names = [*inspect.signature(getattr(base, method)).parameters]
        if isinstance(inspect.getattr_static(kind, method), staticmethod):
            names = names[1:]
        check_takes(f"{method} of {what}", getattr(kind, method), *names)


def is_defined_again(old: object, new: object) -> bool:
    """Whether a notebook's cell, or a file that is imported and run, comes again."""
    modules = [getattr(each, "__module__", "") for each in (old, new)]
    names = [getattr(each, "__qualname__", "") for each in (old, new)]
    files = [getattr(sys.modules.get(name), "__file__", None) for name in modules]
    if modules[0] == modules[1]:
        return names[0] == names[1] and modules[0] == "__main__"
    return names[0] == names[1] and files[0] == files[1] is not None
