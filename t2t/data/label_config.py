"""Where the labels of images are, if not in the names of their class folders."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields

from t2t.errors import UserError, suggest

PathLike = str | os.PathLike[str]


@dataclass(frozen=True, kw_only=True)
class LabelConfig:
    """Files with paths and labels, or a pattern for the names of the images.

    What is None or empty is found by itself.
    """

    files: tuple[str, ...] = ()
    """Tables of paths and labels: .csv, .tsv, .json or .jsonl."""
    path_column: str | None = None
    """The column with paths: its name, or its number from 1 if there is no header."""
    label_columns: tuple[str, ...] = ()
    """The column with labels, or several columns of 0 and 1, one for each class."""
    split_column: str | None = None
    """The column with train, val or test."""
    separator: str | None = None
    """What separates several labels of an image: a character; "" for one label each."""
    several: bool | None = None
    """Whether an image may have several labels; None finds out."""
    pattern: str | None = None
    """Where the label is in the path of an image, such as {label}_*.jpg."""

    def __post_init__(self) -> None:
        """Checks that a file and a pattern are not both given."""
        if self.pattern is not None and self.files:
            raise UserError(
                f"The labels are either in {', '.join(self.files)} or in the file "
                f"names ({self.pattern}): give --labels or --label-pattern."
            )

    @property
    def is_given(self) -> bool:
        """Whether it says where the labels are."""
        return bool(self.files) or self.pattern is not None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are named."""
        named = (self.path_column, *self.label_columns, self.split_column)
        return tuple(name for name in named if name is not None)


NO_LABEL_CONFIG = LabelConfig()
"""Finds out by itself where the labels are."""
_MEANINGS = ("path", "label", "split")


def parse_columns(text: str) -> dict[str, str | tuple[str, ...]]:
    """Fields of a LabelConfig from `path=file,label=breed`.

    Several label columns are separated by commas: `path=file,label=cat,dog`.
    """
    found: dict[str, list[str]] = {}
    meaning = ""
    for word in text.split(","):
        before, equals, after = word.partition("=")
        name = before
        if equals:
            meaning, name = before.strip().lower(), after
            if meaning not in _MEANINGS:
                raise UserError(
                    f"--label-columns {text} names the columns of {meaning!r}."
                    f"{suggest(meaning, _MEANINGS)}"
                )
        if not meaning or not name.strip():
            raise UserError(
                f"--label-columns {text} is not understood: write which column holds "
                "what, as in path=file,label=breed (or split=part)."
            )
        found.setdefault(meaning, []).append(name.strip())
    for meaning in ("path", "split"):
        if len(found.get(meaning, ())) > 1:
            raise UserError(
                f"--label-columns {text} names several columns for {meaning}: give one."
            )
    config: dict[str, str | tuple[str, ...]] = {
        f"{meaning}_column": names[0]
        for meaning, names in found.items()
        if meaning != "label"
    }
    if "label" in found:
        config["label_columns"] = tuple(found["label"])
    return config


def label_config(
    labels: PathLike | Sequence[PathLike] = (),
    columns: str | None = None,
    pattern: str | None = None,
) -> LabelConfig:
    """The config of the options --labels, --label-columns and --label-pattern."""
    several = [labels] if isinstance(labels, str | os.PathLike) else labels
    files = tuple(os.fspath(each) for each in several)
    named = {} if columns is None else parse_columns(columns)
    return LabelConfig(files=files, pattern=pattern, **named)  # type: ignore[arg-type]


def differs_from_default(config: LabelConfig) -> bool:
    """Whether anything is set."""
    return any(
        getattr(config, field.name) != field.default for field in fields(LabelConfig)
    )
