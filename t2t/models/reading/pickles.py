"""PyTorch's own files: tensors and plain values, and nothing they could run."""

import argparse
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch

from t2t.errors import UserError, first_line


class Unused:
    """A value beside the weights that nobody needs: what it holds is never looked at.

    It stands for NumPy's numbers and for paths, so that no code of theirs runs.
    """

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, _: Any) -> None:
        pass


UNUSED = (
    *(
        f"numpy.{package}.multiarray.{function}"
        for package in ("core", "_core")
        for function in ("scalar", "_reconstruct")
    ),
    "numpy.dtype",
    "numpy.ndarray",
    *(
        f"pathlib{module}.{system}Path"
        for module in ("", "._local")
        for system in ("Posix", "PurePosix", "Windows", "PureWindows")
    ),
)
"""What training programs keep beside weights: accuracies, and where they wrote."""


def read_pickle(file: Path, origin: str) -> dict[Any, Any]:
    """The content of a PyTorch file; only tensors and plain values are read."""
    check_archive(file, origin)
    # Published checkpoints hold their command line's options; a Namespace is data.
    allowed: list[Any] = [argparse.Namespace, *((Unused, name) for name in UNUSED)]
    try:
        with (
            torch.serialization.safe_globals(allowed),
            warnings.catch_warnings(),
        ):
            # That an odd pickle may be refused is told by refusing it.
            warnings.simplefilter("ignore")
            content = torch.load(file, map_location="cpu", weights_only=True)
    # Damaged bytes are read as any instruction, so any kind of error may follow.
    except Exception as error:
        raise UserError(why_refused(error, origin)) from error
    if not isinstance(content, dict):
        raise UserError(
            f"{origin} holds a {type(content).__name__}, not weights by name."
        )
    return content


def check_archive(file: Path, origin: str) -> None:
    """Refuses an archive that unpacks to more than its size: PyTorch packs nothing."""
    try:
        with zipfile.ZipFile(file) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
    except Exception:  # not an archive, or a damaged one, which torch.load tells
        return
    if unpacked > file.stat().st_size:
        raise UserError(
            f"{origin} is not a file of weights, or is damaged: it holds "
            f"{file.stat().st_size:,} bytes and claims to unpack to {unpacked:,}."
        )


def why_refused(error: Exception, origin: str) -> str:
    """What a file is that could not be read, in one sentence."""
    # What comes before is advice to load without the safety.
    reason = str(error).rpartition("WeightsUnpickler error:")[2].strip()
    if asked := re.search(r"GLOBAL (\S+)|function (\S+)|class (\S+)", reason):
        return (
            f"{origin} was not loaded: it asks for {asked[asked.lastindex or 0]}, "
            "which is code and not weights. Only tensors and plain values are read."
        )
    if isinstance(error, MemoryError):
        return f"{origin} claims more memory than there is: it is damaged."
    told = isinstance(error, RuntimeError | OSError | ValueError | EOFError)
    if told or type(error).__name__ == "UnpicklingError":
        reason = (reason.splitlines() or ["it ends early"])[0]
        return (
            f"{origin} is not a file of weights, or is damaged or cut off ({reason})."
        )
    # Text and other bytes that only look like a pickle at first.
    return (
        f"{origin} is not a file of weights, or is damaged: its bytes make no sense as "
        f"a PyTorch file ({type(error).__name__}: {first_line(error)})."
    )
