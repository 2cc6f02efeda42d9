"""Configs are frozen dataclasses: JSON in both directions, and overrides by name."""

import ast
import contextlib
import dataclasses
import json
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from t2t.errors import UserError, suggest

Config = TypeVar("Config")
MAX_IMAGE_SIDE = 65_535
"""Pixels per side of an image: the limit of JPEG."""
MAX_WORKERS = 1024
"""Data loading workers per process; more is surely a typing error."""
MAX_HANG_MINUTES = 10_000
"""A week: more is surely a typing error, too."""


def to_json(config: Any) -> dict[str, Any]:
    """A dataclass as JSON, with nested dataclasses."""
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config)))
    return plain


def from_json(cls: type[Config], data: Mapping[str, Any]) -> Config:
    """The dataclass that `to_json` wrote; an unknown field is an error."""
    if not isinstance(data, Mapping):
        raise UserError(
            f"A {cls.__name__} is a JSON object of fields and values, not "
            f"{json.dumps(data)[:40]}."
        )
    hints = get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for name in data.keys() - fields.keys():
        raise UserError(f"{cls.__name__} has no field {name!r}.{suggest(name, fields)}")
    missing = [
        name for name in fields if name not in data and is_required(fields[name])
    ]
    if missing:
        plural = "" if len(missing) == 1 else "s"
        raise UserError(
            f"A {cls.__name__} needs the field{plural} {' and '.join(missing)}."
        )
    values = {name: convert(value, hints[name], name) for name, value in data.items()}
    return cls(**values)


def is_required(field: "dataclasses.Field[Any]") -> bool:
    """Whether a field has no default."""
    none = dataclasses.MISSING
    return field.default is none and field.default_factory is none


def override(config: Config, assignments: Sequence[str]) -> Config:
    """The config with fields set by words like `epochs=10` or `optimizer.lr=1e-3`.

    All are set before the config is checked, so several can change together.
    """
    plain = to_json(config)
    for word in assignments:
        set_at(plain, type(config), *assignment(word))
    return from_json(type(config), plain)


def assignment(word: str) -> tuple[str, str]:
    """The name and the text of `name=text`."""
    name, equals, text = word.partition("=")
    if not equals:
        raise UserError(f"{word!r} sets nothing; write NAME=VALUE, like epochs=10.")
    return name.strip().replace("-", "_"), text.strip()


def set_value(name: str, settings: Iterable[str]) -> str | None:
    """The text that settings give a field, if any."""
    found = None
    for word in settings:
        field, text = assignment(word)
        found = text if field == name else found
    return found


def check_contradictions(
    options: Mapping[str, Any],
    settings: Iterable[str],
    option_names: Mapping[str, str] | None = None,
) -> None:
    """Raises an error if options and --set give one field different values.

    `options` are values by field; `option_names` has the names of options that are not
    called like their field.
    """
    given: dict[str, tuple[str, str]] = {}
    for name, value in options.items():
        option = (option_names or {}).get(name, f"--{name.replace('_', '-')}")
        if value is True:
            given[name] = ("true", option)
        elif value not in (None, False):
            given[name] = (str(value), f"{option} {value}")
    for setting in settings:
        name, text = assignment(setting)
        before, words = given.setdefault(name, (text, f"--set {setting}"))
        if text != before:
            raise UserError(
                f"{words} and --set {setting} contradict each other; give one of them."
            )


def value_of(cls: type, name: str, text: str) -> Any:
    """The text converted to the type of a dataclass's field, if it has that field."""
    return convert(parse(text), get_type_hints(cls).get(name, Any), name, text)


def set_at(plain: dict[str, Any], cls: Any, path: str, text: str) -> None:
    """Sets the field at a dotted path of a config in JSON."""
    *outer, last = path.split(".")
    root = cls
    for name in outer:
        cls = keys_of(cls, name) or hint_of(cls, name, path, root)
        if not isinstance(plain.get(name), dict):
            raise UserError(f"{name} has no fields, so {path!r} cannot be set.")
        plain = plain[name]
    hint = hint_of(cls, last, path, root)
    plain[last] = to_plain(convert(parse(text), hint, path, text))


def keys_of(cls: Any, name: str) -> Any:
    """The dataclass whose fields are the keys of a dict field, if its metadata says so.

    It gives values their type: in `model_args.positions=none`, none is a string.
    """
    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    return next(
        (each.metadata.get("keys_of") for each in fields if each.name == name), None
    )


def hint_of(cls: Any, name: str, path: str, root: Any) -> Any:
    """The type of a field; Any in a dict."""
    if not dataclasses.is_dataclass(cls):
        return Any
    hints = get_type_hints(cls)
    if name not in hints:
        raise UserError(f"There is no setting {path!r}.{suggest_setting(path, root)}")
    return hints[name]


def suggest_setting(path: str, root: Any) -> str:
    """A closing sentence with the settings of the same or a similar name."""
    settings = [*all_settings(root)]
    if same := settings_named(root, path.rpartition(".")[2]):
        return f" Did you mean {' or '.join(same)}?"
    outermost = ", ".join(sorted(each for each in settings if "." not in each))
    return suggest(path, settings) or f" There are: {outermost}."


def settings_named(cls: Any, name: str) -> list[str]:
    """The dotted paths of all fields of that name."""
    return [path for path in all_settings(cls) if path.rpartition(".")[2] == name]


def all_settings(cls: Any, at: str = "") -> Iterator[str]:
    """The dotted paths of all fields, also of nested dataclasses and `keys_of`."""
    hints = get_type_hints(cls)
    for field in dataclasses.fields(cls):
        yield f"{at}{field.name}"
        inner = keys_of(cls, field.name) or hints[field.name]
        if dataclasses.is_dataclass(inner):
            yield from all_settings(inner, f"{at}{field.name}.")


def to_plain(value: Any) -> Any:
    """A value as JSON."""
    return json.loads(json.dumps(value))


def parse(text: str) -> Any:
    """A number, tuple, bool or None if the text is one, else the text."""
    words = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def convert(value: Any, hint: Any, name: str, text: str | None = None) -> Any:
    """The value converted to its field's type; an error says what the type takes."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        hint = next(arg for arg in args if arg is not type(None))
        return convert(value, hint, name, text)
    if text is not None and (hint is str or (origin is Literal and text in args)):
        return text  # even if it looks like something else, such as none
    if hint is float and type(value) is int:
        return float(value)
    if hint is Any or type(value) is hint or (origin is Literal and value in args):
        return value
    if origin is dict and isinstance(value, Mapping):
        return dict(value)
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        return from_json(hint, value)  # type: ignore[arg-type]
    if hint == tuple[int, int] and type(value) is int:
        return value, value  # one number for a square
    if origin is tuple and type(value) in (int, float) and args[-1] is Ellipsis:
        value = (value,)
    if hint == tuple[str, ...] and text is not None and isinstance(value, str):
        value = tuple(word.strip() for word in value.split(","))
    if origin is tuple and isinstance(value, list | tuple):
        inner = args[:1] * len(value) if args[-1] is Ellipsis else args
        if len(inner) == len(value):
            pairs = zip(value, inner, strict=True)
            with contextlib.suppress(UserError):  # the error below names it all
                return tuple(
                    convert(item, each, name, item if isinstance(item, str) else None)
                    for item, each in pairs
                )
    shown = text if text is not None else json.dumps(value, default=repr)
    raise UserError(f"{name}={shown} is not allowed: {name} takes {describe(hint)}.")


def describe(hint: Any) -> str:
    """The values that a type allows, as text."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(map(str, args))
    if origin is tuple and args[-1] is Ellipsis and get_origin(args[0]) is tuple:
        return "triples, such as (7,4,2),(3,2,1),(3,2,1)"
    if hint == tuple[int, int]:
        return "one whole number or two, such as 224 or 192,256"
    if hint == tuple[str, ...]:
        return "names, such as axial,attention"
    if origin is tuple:
        number = {int: "whole numbers", float: "numbers"}.get(args[0], "values")
        example = "3,6,6,4" if args[-1] is Ellipsis else ",".join("1" * len(args))
        return f"{number}, such as {example}"
    names = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "a word",
    }
    return names.get(hint, f"a {getattr(hint, '__name__', str(hint))}")


def check_plain(value: Any, name: str) -> None:
    """Raises an error for settings that JSON cannot hold."""
    if not isinstance(value, Mapping):
        return
    for key, each in value.items():
        try:
            json.dumps({key: each})
        except (TypeError, ValueError):
            raise UserError(
                f"{name}.{key} is a {type(each).__name__}, which recipe.json cannot "
                "hold; give a number, a word, true or false, or a tuple of these."
            ) from None


def differences(
    old: Mapping[str, Any], new: Mapping[str, Any], at: str = ""
) -> list[str]:
    """The fields in which two JSON objects differ, as `field: old → new`."""
    found = []
    for name in {**new, **old}:  # in the order of the fields
        before, after = old.get(name), new.get(name)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            found += differences(before, after, f"{at}{name}.")
        elif before != after:
            found.append(f"{at}{name}: {json.dumps(before)} → {json.dumps(after)}")
    return found


def few(found: Sequence[str]) -> str:
    """The first few differences, and the number of others."""
    rest = f" and {len(found) - 4} more" if len(found) > 4 else ""
    return "; ".join(found[:4]) + rest
