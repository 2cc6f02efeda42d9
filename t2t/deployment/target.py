"""Where an export is written: complete, or not at all."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from t2t.deployment.options import FOLDER_SUFFIX, SUFFIXES, ExportOptions
from t2t.deployment.timm_folder import FILES
from t2t.errors import DISK_FULL, UserError
from t2t.models.trained import TrainedModel


def target_of(
    trained: TrainedModel,
    options: ExportOptions,
    weights: str | os.PathLike[str],
    out: str | os.PathLike[str] | None,
) -> Path:
    """Where to write; by default a file in this folder, named like the weights."""
    suffix = SUFFIXES[options.to]
    if out is None:
        given = Path(str(weights)).expanduser()
        stem = given.stem if given.is_file() else given.name
        is_path = given.exists() and stem != "model"
        target = Path((stem if is_path else trained.name) + (suffix or FOLDER_SUFFIX))
    else:
        target = Path(out).expanduser()
    if suffix and target.suffix != suffix:
        raise UserError(f"{target} must end in {suffix}, as {options.to} files do.")
    if not target.parent.is_dir():
        raise UserError(
            f"{target} cannot be written: there is no folder {target.parent}; create "
            "it, or name another file."
        )
    if suffix and target.is_dir():
        raise UserError(f"{target} is a folder: name a file that ends in {suffix}.")
    source = Path(str(weights)).expanduser()
    if target.exists() and source.exists():
        files = [source, *(source.glob("*.safetensors") if source.is_dir() else ())]
        if any(target.samefile(each) for each in files):
            raise UserError(
                f"{target} is the file of weights itself: give --out another name."
            )
    if not suffix:
        check_folder(target)
    return target


def check_folder(target: Path) -> None:
    """Raises an error rather than replace a folder that is not an earlier export."""
    if not target.exists():
        return
    if not target.is_dir():
        raise UserError(f"{target} is a file: name a new folder.")
    others = {path.name for path in target.iterdir()} - set(FILES)
    if others:
        raise UserError(
            f"{target} holds something other than an earlier export "
            f"({', '.join(sorted(others)[:3])}): name a new folder."
        )


@contextmanager
def unfinished(target: Path) -> Iterator[Path]:
    """A path of the same name in a temporary folder beside it, removed afterwards."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise unwritable(target, error) from error
    try:
        yield folder / target.name
    except OSError as error:
        if error.errno in DISK_FULL:
            raise unwritable(target, error) from error
        raise
    except UserError as error:
        message = str(error).replace(str(folder / target.name), str(target))
        raise UserError(message) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def unwritable(target: Path, error: OSError) -> UserError:
    """The error for a file or folder that cannot be written."""
    advice = "free some space, or " if error.errno in DISK_FULL else ""
    return UserError(
        f"{target} cannot be written ({error.strerror}): {advice}give --out another "
        "place."
    )


def publish(part: Path, target: Path) -> None:
    """Moves what was written to its place."""
    beside = part.with_name(f"{part.name}.data")
    if beside.exists():
        beside.replace(target.with_name(beside.name))
    if part.is_dir():
        target.mkdir(exist_ok=True)
        for file in part.iterdir():
            file.replace(target / file.name)
    else:
        part.replace(target)
