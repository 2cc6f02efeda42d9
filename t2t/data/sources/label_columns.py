"""Which columns of a table hold paths, labels and splits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from t2t.data.image_files import is_image_name
from t2t.data.label_config import LabelConfig
from t2t.data.sources.filenames import SPLIT_NAMES
from t2t.data.sources.label_values import flag_of, is_flag, plain_value
from t2t.errors import UserError, suggest

# The first that a table has is taken.
PATH_NAMES = (
    *("path", "file", "file_name", "filename", "filepath", "file_path", "image"),
    *("image_path", "img", "img_path", "image_name", "image_file", "img_name"),
    *("images", "files", "image_id", "img_id", "id"),
)
LABEL_NAMES = (
    *("label", "labels", "class", "classes", "class_name", "label_name", "category"),
    *("categories", "category_name", "target", "targets", "tag", "tags", "species"),
    *("breed", "class_label", "class_id", "classid", "label_id", "category_id"),
)
SPLIT_COLUMNS = ("split", "subset", "set", "partition", "phase")
VAL_FLAGS = ("is_valid", "is_val", "is_validation")
_SPLIT_WORDS = {name for names in SPLIT_NAMES.values() for name in names}


@dataclass(frozen=True)
class Columns:
    """The columns of a table by their index in a row."""

    names: tuple[str, ...]
    path: int
    labels: tuple[int, ...]
    """None for a table without labels, several for columns of 0 and 1."""
    split: int | None
    split_is_flag: bool = False
    """Whether the column says by 1 or 0 whether an image is for validation."""

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of the label columns."""
        return tuple(self.names[column] for column in self.labels)

    def get_split(self, where: str) -> Callable[[Any], Any]:
        """The function that maps a cell to the name of a split."""
        if not self.split_is_flag or self.split is None:
            return _unchanged
        return partial(_split_of_flag, self.names[self.split], where)

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence on a column of splits, by its name, that holds none."""
        used = {self.path, self.split, *self.labels}
        unused = [name for n, name in enumerate(self.names) if n not in used]
        return tuple(
            f"Column {name!r} is not used: it holds no train, val or test."
            for name in unused
            if self.split is None and _plain(name) in SPLIT_COLUMNS
        )

    def __str__(self) -> str:
        named = [f"path={self.names[self.path]}"]
        if self.labels:
            names = self.label_names
            few = names if len(names) < 4 else (*names[:2], "…", names[-1])
            named.append(f"label={','.join(few)}")
        if self.split is not None:
            named.append(f"split={self.names[self.split]}")
        return ",".join(named)


def _unchanged(cell: Any) -> Any:
    return cell


def _split_of_flag(name: str, where: str, cell: Any) -> str:
    flag = flag_of(cell)
    if flag is None:
        raise UserError(
            f"Column {name!r} of {where} holds {str(cell)[:40]!r}: write 1 for images "
            "to validate on and 0 for the others, or name a column of train, val and "
            "test with --label-columns split=COLUMN."
        )
    return "val" if flag else "train"


def is_header(cells: Sequence[str], config: LabelConfig) -> bool:
    """Whether the first row of a table names its columns."""
    known = {*PATH_NAMES, *LABEL_NAMES, *SPLIT_COLUMNS, *VAL_FLAGS, *config.columns}
    if any(_plain(cell) in known or cell in known for cell in cells):
        return True
    return not any(is_image_name(cell) for cell in cells)


def find_columns(
    names: Sequence[str],
    rows: Sequence[Sequence[Any]],
    config: LabelConfig,
    where: str,
    *,
    labels: bool,
    guess: bool = True,
) -> Columns:
    """The columns of a table by its config, by their names, or by the first rows.

    Without `labels`, a table of paths alone will do; without `guess`, the labels are in
    a column with a known name.
    """
    finder = _Finder(tuple(map(str, names)), rows, config, where)
    return finder.find(labels=labels, guess=guess)


class _Finder:
    """A table's names and first rows, to find its columns in."""

    def __init__(
        self,
        names: tuple[str, ...],
        rows: Sequence[Sequence[Any]],
        config: LabelConfig,
        where: str,
    ) -> None:
        self.names, self.rows, self.config, self.where = names, rows, config, where
        self.plain = [_plain(name) for name in names]

    def find(self, *, labels: bool, guess: bool) -> Columns:
        """All columns."""
        config = self.config
        given = config.path_column
        path = self.find_path() if given is None else self.index_of(given)
        split, is_flag_column = self.find_split(path)
        if config.label_columns:
            label_columns = tuple(self.index_of(name) for name in config.label_columns)
        else:
            label_columns = self.find_labels({path, split}, guess)
        if not label_columns and labels:
            self.refuse("label", {path, split})
        used = [path, *label_columns, *([] if split is None else [split])]
        if len(set(used)) < len(used):
            raise UserError(
                f"{self.listed()}: one of them is named for two things; give each its "
                "own, as in --label-columns path=file,label=breed."
            )
        return Columns(self.names, path, label_columns, split, is_flag_column)

    def index_of(self, name: str) -> int:
        """The index of a column, given by its name or by its number from 1."""
        for names, wanted in ((self.names, name), (self.plain, _plain(name))):
            if wanted in names:
                return names.index(wanted)
        if name.isdecimal() and 1 <= int(name) <= len(self.names):
            return int(name) - 1
        raise UserError(
            f"{self.where} has no column {name!r}.{suggest(name, self.names)}"
        )

    def find_path(self) -> int:
        """The column with known name, if possible one that holds names of images."""
        known = [self.plain.index(name) for name in PATH_NAMES if name in self.plain]
        for column in (*known, *range(len(self.names))):
            if self.all_cells(column, lambda cell: is_image_name(str(cell))):
                return column
        if known:
            return known[0]
        return self.refuse("path", set())

    def find_split(self, path: int) -> tuple[int | None, bool]:
        """The column of splits, if there is one, and whether it holds 0 and 1."""
        if self.config.split_column is not None:
            column = self.index_of(self.config.split_column)
            return column, self.all_cells(column, is_flag)
        for name in SPLIT_COLUMNS:
            if name in self.plain:
                column = self.plain.index(name)
                # Another thing may be called a set; in a split, a word may be wrong.
                if self.most_cells(column, _is_split) and column != path:
                    return column, False
        for name in VAL_FLAGS:
            if name in self.plain:
                return self.plain.index(name), True
        return None, False

    def find_labels(self, taken: set[int | None], guess: bool) -> tuple[int, ...]:
        """The column of labels, or those of 0 and 1; empty if there are none."""
        for name in LABEL_NAMES:
            if name in self.plain and (column := self.plain.index(name)) not in taken:
                return (column,)
        if not guess:
            return ()
        rest = [column for column in range(len(self.names)) if column not in taken]
        flags = [column for column in rest if self.all_cells(column, is_flag)]
        if len(flags) > 1:
            return tuple(flags)
        return tuple(rest) if len(rest) == 1 else ()

    def all_cells(self, column: int, test: Callable[[Any], bool]) -> bool:
        """Whether the first rows pass a test in a column."""
        cells = [row[column] for row in self.rows if column < len(row)]
        return bool(cells) and all(map(test, cells))

    def most_cells(self, column: int, test: Callable[[Any], bool]) -> bool:
        """Whether most of the first rows that have a cell pass a test."""
        cells = [row[column] for row in self.rows if column < len(row)]
        filled = [cell for cell in cells if plain_value(cell) != ""]
        return 2 * sum(map(test, filled)) > len(filled)

    def refuse(self, meaning: str, taken: set[int | None]) -> int:
        """Raises an error for a column that is not found."""
        left = [name for n, name in enumerate(self.names) if n not in taken]
        example = left[-1] if left else "COLUMN"
        what = {"path": "the paths of images", "label": "the labels"}[meaning]
        raise UserError(
            f"{self.listed()}, and none is known to hold {what}: name it, as in "
            f"--label-columns {meaning}={example}."
        )

    def listed(self) -> str:
        """The columns, to begin a sentence."""
        shown = ", ".join(self.names[:12]) + (", …" if len(self.names) > 12 else "")
        word = "column" if len(self.names) == 1 else "columns"
        return f"{self.where} has the {word} {shown}"


def _plain(name: str) -> str:
    return name.strip().lower().replace(" ", "_").replace("-", "_")


def _is_split(cell: Any) -> bool:
    return str(plain_value(cell)).lower() in _SPLIT_WORDS
