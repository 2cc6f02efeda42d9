"""What the values in a column of labels mean: one class each, or several."""

import ast
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from t2t.errors import UserError

Classes = tuple[str, ...]
SEPARATORS = (";", "|", ",", " ")
"""What may separate several labels, in the order tried."""
_ALWAYS = (";", "|")
"""Not part of the names of classes; a comma or a space may be."""
_PLURALS = ("labels", "tags", "classes", "categories", "targets")
_FLAGS = {"1": True, "0": False, "1.0": True, "0.0": False, "": False}
_FLAGS |= {"true": True, "false": False, "yes": True, "no": False}


@dataclass(frozen=True)
class ReadValues:
    """The classes of each distinct value, and what separated them."""

    classes: list[Classes]
    separator: str
    """Empty if every value is one class, or a list."""

    @property
    def are_several(self) -> bool:
        """Whether a value has several classes."""
        return any(len(each) > 1 for each in self.classes)


def plain_value(value: Any) -> Any:
    """A label as text, or as a tuple of texts if there are several."""
    if value is None or value != value:  # NaN, as data frames mark what is missing
        return ""
    if hasattr(value, "tolist"):  # of NumPy
        value = value.tolist()
    if isinstance(value, list | tuple | set | frozenset):
        ordered = (
            sorted(value, key=str) if isinstance(value, set | frozenset) else value
        )
        return tuple(str(plain_value(each)) for each in ordered)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # a column of numbers in which some are missing
    return str(value).strip()


def is_flag(value: Any) -> bool:
    """Whether a cell of a class's column says that an image has it, or has not."""
    return flag_of(value) is not None


def flag_of(value: Any) -> bool | None:
    """A cell of 0 or 1 as a bool; None if it holds anything else."""
    return _FLAGS.get(str(plain_value(value)).lower())


def read_flags(
    values: Sequence[Sequence[Any]], names: Sequence[str], where: str
) -> ReadValues:
    """The classes of rows of 0 and 1, one column for each class."""
    found = []
    for cells in values:
        texts = [str(plain_value(cell)).lower() for cell in cells]
        for name, text in zip(names, texts, strict=True):
            if text not in _FLAGS:
                raise UserError(
                    f"Column {name!r} of {where} holds {text[:40]!r}: the columns of "
                    "classes hold 0 or 1; name the column of labels with "
                    "--label-columns label=COLUMN."
                )
        pairs = zip(names, texts, strict=True)
        found.append(tuple(name for name, text in pairs if _FLAGS[text]))
    return ReadValues(found, "")


def read_values(
    values: Sequence[Any], column: str = "", separator: str | None = None
) -> ReadValues:
    """The classes of each of some distinct values.

    Values are texts or tuples of texts. Texts may be JSON lists, or several labels with
    a separator, which is found if it is None. The name of the `column` is a hint.
    """
    lists = [_as_list(value) for value in values]
    texts = [
        value
        for value, items in zip(values, lists, strict=True)
        if items is None and value
    ]
    if separator is None:
        separator = find_separator(texts, column)
    found = []
    for value, items in zip(values, lists, strict=True):
        if items is None:
            items = value.split(separator) if separator else [value]
        stripped = (item.strip() for item in items)
        found.append(tuple(dict.fromkeys(item for item in stripped if item)))
    return ReadValues(found, separator)


def _as_list(value: Any) -> Sequence[str] | None:
    """The items of a tuple, or of a text such as ["cat", "dog"]; None for others."""
    if isinstance(value, tuple):
        return value
    if value[:1] == "[" and value[-1:] == "]":
        for read in (json.loads, ast.literal_eval):
            # ['cat', 'dog'] is how Python prints a list.
            with suppress(ValueError, SyntaxError, TypeError, RecursionError):
                items = read(value)
                if isinstance(items, list):
                    return [str(plain_value(item)) for item in items]
    return None


def find_separator(texts: Sequence[str], column: str) -> str:
    """The separator of several labels in some of these texts; empty if there is none.

    Names of classes may hold commas and spaces: these separate only if the parts are
    fewer than the texts, as labels that come in many combinations are.
    """
    is_plural = column.lower().endswith(_PLURALS)
    for separator in SEPARATORS:
        cat = [text for text in texts if separator in text.strip()]
        if not cat:
            continue
        if separator in _ALWAYS:
            return separator
        parts = {part.strip() for text in texts for part in text.split(separator)}
        if len(parts) < len(texts) and (separator == "," or is_plural):
            return separator
    return ""
