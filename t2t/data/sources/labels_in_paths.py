"""Images whose labels are in their paths: in file names, or in folders at any depth."""

import os
from collections.abc import Iterator
from pathlib import Path

from t2t.data.image_files import is_dir, walk
from t2t.data.sources.filenames import SPLIT_NAMES
from t2t.data.sources.label_patterns import HOW_TO_WRITE, compile_pattern
from t2t.data.sources.label_table import Row
from t2t.errors import UserError


def rows_by_pattern(root: Path, pattern: str, notes: list[str]) -> Iterator[Row]:
    """The path, the label and the split of every image in a folder.

    A folder called train beside one called val or test is a split. A sentence on images
    that the pattern does not fit is added to the `notes`.
    """
    match = compile_pattern(pattern).fullmatch
    num = num_other = 0
    other = ""
    for folder, split in split_folders(root) or [("", "")]:
        prefix = f"{folder}/" if folder else ""
        for name in walk(str(root / folder), prefix):
            num += 1
            if found := match(name.replace(os.sep, "/")):
                yield name, found["label"], split
            else:
                num_other += 1
                other = other or name
    if num_other > num / 2:
        raise UserError(
            f"--label-pattern {pattern!r} fits {num - num_other:,} of the {num:,} "
            f"images in {root}, but not, for example, {other}: {HOW_TO_WRITE}."
        )
    if num_other:
        which = "1 image is" if num_other == 1 else f"{num_other:,} images are"
        notes.append(
            f"{which} skipped, such as {other}: the pattern {pattern} does not fit."
        )


def split_folders(root: Path) -> list[tuple[str, str]]:
    """The folders that are named for splits, if one of them is for training."""
    folders = {
        entry.name.lower(): entry.name for entry in os.scandir(root) if is_dir(entry)
    }
    found = []
    for split, names in SPLIT_NAMES.items():
        present = [folders[name] for name in names if name in folders]
        found += [(name, split) for name in present[:1]]
    return found if any(split == "train" for _, split in found) else []
