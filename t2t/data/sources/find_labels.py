"""Finds the labels of a folder's images, in tables or in their paths."""

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path

from t2t.data.label_config import LabelConfig
from t2t.data.sources.filenames import SPLIT_NAMES
from t2t.data.sources.folder import class_folders, holds_images_by_class
from t2t.data.sources.label_files import TABLE_SUFFIXES, WORKBOOKS, read_file
from t2t.data.sources.label_patterns import suggestion
from t2t.data.sources.label_table import find_files, read_rows
from t2t.data.sources.labels_in_paths import split_folders
from t2t.data.sources.open_labelled import (
    NUM_TRIED,
    FoundLabels,
    files_in,
    open_tables,
    with_base,
)
from t2t.errors import UserError

_STEMS = ("labels", "label", "metadata", "annotations", "annotation", "classes")
_SPLIT_STEMS = ("{}", "{}_labels", "labels_{}", "{}_metadata")


def discover(root: Path, config: LabelConfig) -> FoundLabels | None:
    """The images of a folder with the table of labels in or beside it, if there is one.

    In folders called train, val and test, or named for them, there may be one for each.
    """
    candidates = _Candidates(root, config)
    found = candidates.inside() or candidates.beside()
    if not found:
        return None
    if len(found) > 1:
        names = ", ".join(file for files in found for file in files)
        raise UserError(
            f"{root} has several tables of labels ({names}): name one with --labels."
        )
    opened = open_tables(root, replace(config, files=tuple(found[0])), note=True)
    return replace(opened, notes=(*opened.notes, *candidates.notes))


def check_no_unused_table(root: Path, config: LabelConfig) -> None:
    """Refuses a folder without class folders whose table of labels cannot be used."""
    if not _is_flat(root):
        for folder, _ in split_folders(root):
            if _is_flat(root / folder):
                check_no_unused_table(root / folder, config)
        return
    _, images, _ = class_folders(root)
    for file in _Candidates(root, config).of_usual_names():
        try:
            open_tables(root, replace(config, files=(file,)))
        except UserError as error:
            raise UserError(
                f"{root} holds images but no class folders, and its table of labels "
                f"cannot be used: {error}{suggestion(images)}"
            ) from error


def _is_flat(root: Path) -> bool:
    """Whether a folder holds images, and no folders."""
    folders, images, _ = class_folders(root)
    return bool(images) and not folders


class _Candidates:
    """The tables of usual names in and beside a folder, if they fit its images."""

    def __init__(self, root: Path, config: LabelConfig) -> None:
        self.root, self.config = root, config
        self.notes: list[str] = []
        self.name = name = root.resolve().name
        self.stems = (*_STEMS, name)
        self.stems_beside = (*self.stems, f"{name}_labels", f"labels_{name}")

    @cached_property
    def is_by_class(self) -> bool:
        """Whether there are class folders: other tables may be beside them."""
        return holds_images_by_class(self.root)

    def inside(self) -> list[list[str]]:
        """Tables in the folder; several for the splits of one data set."""
        found = [self.in_splits(), self.named_for_splits()]
        own = _there(self.root, self.stems)
        return [files for files in (*found, *self.each(own)) if files]

    def beside(self) -> list[list[str]]:
        """Tables beside a folder of images without folders."""
        there = _there(self.root.parent, self.stems_beside)
        return self.each(there) if there and _is_flat(self.root) else []

    def of_usual_names(self) -> list[str]:
        """Tables and workbooks in and beside the folder, whether or not they fit."""
        suffixes = (*TABLE_SUFFIXES, *WORKBOOKS)
        return [
            *_there(self.root, self.stems, suffixes),
            *_there(self.root.parent, self.stems_beside, suffixes),
        ]

    def each(self, files: Iterable[str]) -> list[list[str]]:
        """The tables that fit, each in a list of its own."""
        return [[file] for file in files if self.fits(file)]

    def in_splits(self) -> list[str]:
        """A table in the folder train, and in val and test if they have labels too."""
        folders = split_folders(self.root)
        return self.those_of_splits(
            [(_there(self.root / folder, _STEMS), split) for folder, split in folders]
        )

    def named_for_splits(self) -> list[str]:
        """train.csv, and val.csv and test.csv if they have labels too."""
        tables = []
        for split, names in SPLIT_NAMES.items():
            stems = [stem.format(name) for name in names for stem in _SPLIT_STEMS]
            tables.append((_there(self.root, stems), split))
        return self.those_of_splits(tables)

    def those_of_splits(self, tables: list[tuple[list[str], str]]) -> list[str]:
        """The first table of each split that fits; none if there is no train."""
        files: list[str] = []
        for found, split in tables:
            whys = [(file, self.why_not(file, split)) for file in found]
            fitting = [file for file, why in whys if not why]
            if split == "train" and not fitting:
                return []
            files += fitting[:1]
            if not fitting:
                self.notes += [f"{file} is not used: {why}" for file, why in whys]
        return files

    def fits(self, file: str) -> bool:
        """Whether a table has paths and labels, and most of its first paths exist."""
        return not self.why_not(file)

    def why_not(self, file: str, split: str = "") -> str:
        """Why a table does not fit; empty if it does."""
        try:
            read = read_file(file, self.config, guess=not self.is_by_class)
            rows, base = with_base(read, self.root, file, split)
            path = read.columns.path
            some = [(row[path] or "?", "", "") for row in islice(rows, NUM_TRIED)]
            find_files(read_rows(some, file), base)
        except UserError as error:
            return str(error)
        return ""


def _there(
    folder: Path, stems: Iterable[str], suffixes: tuple[str, ...] = TABLE_SUFFIXES
) -> list[str]:
    """The tables of these names in a folder."""
    there = {name.lower(): name for name in files_in(folder, suffixes)}
    wanted = (f"{stem}{suffix}".lower() for stem in stems for suffix in suffixes)
    names = dict.fromkeys(there[name] for name in wanted if name in there)
    return [str(folder / name) for name in names]
