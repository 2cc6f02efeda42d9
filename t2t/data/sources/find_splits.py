"""Finds the splits of data by one argument: a name, a path, a pattern or a URL."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from t2t.data.image_files import files_below, is_dir, is_image_name, is_url, permitted
from t2t.data.label_config import NO_LABEL_CONFIG, LabelConfig
from t2t.data.sources.base import Openers
from t2t.data.sources.filenames import SPLIT_NAMES, has_braces, num_missing
from t2t.data.sources.find_labels import check_no_unused_table, discover
from t2t.data.sources.folder import find_folder_splits, holds_images_by_class
from t2t.data.sources.in_memory import in_memory_openers, is_in_memory, is_multilabel
from t2t.data.sources.label_files import WORKBOOKS, is_table_name, workbook
from t2t.data.sources.named import NAMED, NAMES
from t2t.data.sources.open_labelled import open_labelled
from t2t.data.sources.parquet import find_parquet_splits
from t2t.data.sources.published import find_published_splits
from t2t.data.sources.shards import find_shard_splits, pack_description
from t2t.data.sources.storage import list_files
from t2t.data.sources.torchvision_sets import TORCHVISION_SETS
from t2t.errors import UserError, close_matches

WHAT_TO_GIVE = (
    "give a folder of images, a table of paths and labels (labels.csv), parquet files "
    "or .tar shards, or one of the data sets "
    f"{', '.join(NAMES)}."
)


@dataclass(frozen=True)
class UnopenedSplits:
    """The splits of some data, before anything large is read."""

    title: str
    openers: Openers
    notes: tuple[str, ...] = ()
    """What was taken, where it could have been something else."""
    label_config: LabelConfig = NO_LABEL_CONFIG
    """Where the labels are, with all that was found by itself."""


def find_splits(
    spec: str | Path,
    labels: bool = True,
    label_config: LabelConfig = NO_LABEL_CONFIG,
) -> UnopenedSplits:
    """The kind of data this is, by its name or by its files."""
    text = str(spec)
    if not text.strip():  # as a path it would be the current folder
        raise UserError(f"The name of the data is empty: {WHAT_TO_GIVE}")
    if is_in_memory(text):
        return _find_in_memory(text, label_config)
    if label_config.is_given or label_config.columns:
        return _find_labelled(text, label_config, labels)
    hint = "" if os.path.exists(os.path.expanduser(text)) else NAMED.provide(text)
    if is_named(text):
        return UnopenedSplits(text, NAMED[text], notes_on_name(text))
    if has_braces(text) or text.endswith(".tar") or is_url(text):
        return UnopenedSplits(text, _find_patterned(os.path.expanduser(text), labels))
    path = Path(text).expanduser()
    if path.is_file() and is_table_name(text):
        return _find_labelled(text, label_config, labels)
    if path.is_file():
        return UnopenedSplits(text, _find_file(path, labels))
    if not path.is_dir():
        if path.is_symlink():
            raise UserError(
                f"{text} is a link to {os.readlink(path)}, which does not exist: fix "
                "the link, or give another path."
            )
        if path.exists():
            raise UserError(f"{text} is neither a file nor a folder: {WHAT_TO_GIVE}")
        raise UserError(
            f"There is no file or folder {text}, and no data set of that name"
            f"{_nearest(text, path) or f': {WHAT_TO_GIVE}'}{hint}"
        )
    if published := find_published_splits(path, labels):
        return UnopenedSplits(text, published)
    kind, config = kind_of_folder(path), NO_LABEL_CONFIG
    if kind == "parquet":
        openers = find_parquet_splits(path, labels)
    elif kind == "shards":
        openers = find_shard_splits(str(path), labels)
        if (pack_description(str(path)) or {}).get("multilabel"):
            config = LabelConfig(several=True)
    elif found := discover(path, label_config):
        notes = (*notes_on_name(text), *found.notes)
        return UnopenedSplits(text, found.openers, notes, found.config)
    else:
        if labels:
            check_no_unused_table(path, label_config)
        openers = find_folder_splits(path, labels)
    title = f".{os.sep}{text}" if text in NAMED else text
    if kind != "images":
        below = files_below(str(path), _SUFFIX[kind])
        files = [file for file in below if os.path.basename(file).startswith("train")]
        if missing := num_missing(files):
            title = f"{text} ({missing} of {missing + len(files)} train files missing)"
    return UnopenedSplits(title, openers, notes_on_name(text), config)


def _find_in_memory(text: str, config: LabelConfig) -> UnopenedSplits:
    """Data that was passed as an object."""
    if config.is_given or config.columns:
        raise UserError(
            f"{text} has its labels in the object that was passed as data: leave the "
            "other labels out."
        )
    several = True if is_multilabel(text) else None
    return UnopenedSplits(
        text, in_memory_openers(text), label_config=replace(config, several=several)
    )


def _find_labelled(text: str, config: LabelConfig, labels: bool) -> UnopenedSplits:
    """A folder with the labels that a config names, or a table of labels."""
    path = Path(os.path.expanduser(text))
    if path.is_file() and is_table_name(text):
        if config.files not in ((), (text,)):
            raise UserError(
                f"{text} and {', '.join(config.files)} are both tables of labels: give "
                "one, and the folder of the images as --data."
            )
        path, config = path.parent, replace(config, files=(text,))
    if not path.is_dir():
        what = "is no folder" if path.exists() else "does not exist"
        if is_named(text):
            what = "is a data set with labels of its own"
        raise UserError(
            f"{text} {what}: labels in tables or file names are for a folder of images "
            "(--data FOLDER)."
        )
    if config.is_given:
        found = open_labelled(path, config, labels)
    elif (discovered := discover(path, config)) is not None:
        found = discovered
    else:
        raise UserError(
            f"{text} holds no table of labels that has the columns "
            f"{', '.join(config.columns) or 'of paths and labels'}: name it, as in "
            "--labels labels.csv."
        )
    return UnopenedSplits(text, found.openers, found.notes, found.config)


def is_named(text: str) -> bool:
    """Whether this is a data set by name.

    A folder takes precedence over a torchvision set of the same name, but not over
    `digits`, which is the default, and registered sources.
    """
    if text in TORCHVISION_SETS:
        return not _holds_files(text)
    return text in NAMED


def notes_on_name(text: str) -> tuple[str, ...]:
    """A note on what is opened if a folder has the name of a data set."""
    if text not in NAMED or not _holds_files(text):
        return ()
    here = os.path.join(".", text)
    if is_named(text):
        return (f"Data: the data set {text}; for the folder of that name, use {here}.",)
    return (
        f"Data: the folder {here}, not the data set of that name; to download the "
        "data set, run the command from another folder.",
    )


def _holds_files(text: str) -> bool:
    with permitted():
        return os.path.isdir(text) and bool(os.listdir(text))


_SUFFIX = {"parquet": ".parquet", "shards": ".tar"}


def kind_of_folder(path: Path) -> str:
    """Whether a folder holds parquet files, tar shards, or images in folders."""
    with os.scandir(path) as entries:
        listed = sorted(entries, key=lambda entry: entry.name)
    if not any(not entry.name.startswith(".") for entry in listed):
        raise UserError(
            f"{path} is empty: it should hold one folder of images per class, parquet "
            "files or tar shards."
        )
    folders = [entry for entry in listed if is_dir(entry)]
    # A tar next to unpacked train and val folders is not the data.
    trains = [f.path for f in folders if f.name.lower() in SPLIT_NAMES["train"]]
    kind = _kind_of_files(trains or [str(path), *(f.path for f in folders[:64])])
    # Nor is one among class folders.
    by_class = (holds_images_by_class(Path(root)) for root in trains or [str(path)])
    return "images" if kind == "shards" and all(by_class) else kind


def _kind_of_files(folders: Iterable[str]) -> str:
    """The kind of the first data file in these folders, or images."""
    for folder in folders:
        with os.scandir(folder) as entries:
            # A few files are enough, also of a folder with a million.
            for _, entry in zip(range(256), entries, strict=False):
                for kind, suffix in _SUFFIX.items():
                    if entry.name.endswith(suffix) and entry.name[0] != ".":
                        return kind
    return "images"


def _find_patterned(text: str, labels: bool) -> Openers:
    if has_braces(text) or text.endswith(".tar"):
        return find_shard_splits(text, labels)
    try:
        has_shards = any(name.endswith(".tar") for name in list_files(text))
    except FileNotFoundError as error:
        pattern = f"{text.rstrip('/')}/train-{{000000..000009}}.tar."
        message = f"{text} cannot be listed: name its shards, as in {pattern}"
        raise UserError(message) from error
    except OSError as error:
        raise UserError(f"{text} cannot be listed: {error}.") from error
    if not has_shards:
        raise UserError(
            f"{text} holds no .tar shards, the only data that is read from a URL: pack "
            "the data with t2t pack, or copy it to this machine."
        )
    return find_shard_splits(text, labels)


def _find_file(path: Path, labels: bool) -> Openers:
    if path.suffix == ".parquet":
        return find_parquet_splits(path, labels)
    if is_image_name(path.name):
        raise UserError(
            f"{path} is one image: training data is a folder with one folder of images "
            "per class."
        )
    if path.suffix.lower() in WORKBOOKS:
        raise workbook(str(path))
    raise UserError(
        f"{path} is not a supported kind of data: give a folder of images, parquet "
        "files or .tar shards (unpack or decompress an archive first)."
    )


def _nearest(text: str, path: Path) -> str:
    """A hint of similar names, to end a sentence; empty if there are none.

    Only the last parts of paths are compared.
    """
    meant = {name: name for name in NAMED} if text == path.name else {}
    if path.parent.is_dir():
        with permitted(), os.scandir(path.parent) as entries:
            meant |= {
                each.name.lower(): str(path.parent / each.name) for each in entries
            }
    names = " or ".join(meant[name] for name in close_matches(path.name, meant))
    return f". Did you mean {names}?" if names else ""
