"""Whether tables of labels have changed since a run has read them."""

from contextlib import suppress
from pathlib import Path

from t2t.errors import UserError
from t2t.training.checkpoint_files import checksum
from t2t.training.environment import read_environment
from t2t.training.recipe import Recipe

KEY = "label_tables"
"""The checksums in environment.json, in the order of the recipe's tables."""


def table_checksums(recipe: Recipe) -> list[str]:
    """The checksum of each table of labels; empty for one that cannot be read."""
    return [checksum_if_any(Path(file).expanduser()) for file in recipe.labels.files]


def checksum_if_any(file: Path) -> str:
    """The checksum of a file; empty if it cannot be read."""
    try:
        return checksum(file)
    except OSError:
        return ""


def note_on_tables(folder: Path, recipe: Recipe) -> str:
    """A sentence if the tables of a finished run have changed; else empty."""
    before: list[str] = []
    with suppress(UserError):  # the run may have lost the file, or be an earlier one
        before = read_environment(folder).get(KEY, [])
    pairs = zip(recipe.labels.files, before, table_checksums(recipe), strict=False)
    changed = [file for file, known, now in pairs if known and now and known != now]
    if not changed:
        return ""
    has = "has" if len(changed) == 1 else "have"
    return (
        f"{' and '.join(changed)} {has} changed since this run was trained: to train "
        "with the new labels, name another --folder, or add --fresh."
    )
