"""Reads PyTorch's pickled files without running code in them."""

import argparse
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch

from t2t.errors import UserError, first_line


class Unused:
    """A placeholder for values beside the weights that are not needed.

    It replaces NumPy numbers and paths, so that their code does not run.
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
"""Types of values that training scripts store beside weights, such as paths."""


def read_pickle(file: Path, origin: str) -> dict[Any, Any]:
    """The content of a PyTorch file; only tensors and plain values are loaded."""
    check_archive(file, origin)
    # Published checkpoints contain their command-line options as a Namespace.
    allowed: list[Any] = [argparse.Namespace, *((Unused, name) for name in UNUSED)]
    try:
        with (
            torch.serialization.safe_globals(allowed),
            warnings.catch_warnings(),
        ):
            # The error says enough.
            warnings.simplefilter("ignore")
            content = torch.load(file, map_location="cpu", weights_only=True)
    # Damaged bytes can raise any error.
    except Exception as error:
        raise UserError(why_refused(error, origin)) from error
    if not isinstance(content, dict):
        raise UserError(f"{origin} holds a {type(content).__name__}, not a state dict.")
    return content


def check_archive(file: Path, origin: str) -> None:
    """Raises an error for compressed archives, which PyTorch does not write."""
    try:
        with zipfile.ZipFile(file) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
    except Exception:  # torch.load reports what is not an archive or damaged
        return
    if unpacked > file.stat().st_size:
        raise UserError(
            f"{origin} is not a file of weights, or is damaged: it holds "
            f"{file.stat().st_size:,} bytes and claims to unpack to {unpacked:,}."
        )


def why_refused(error: Exception, origin: str) -> str:
    """Why a file could not be read, in one sentence."""
    # The text before it advises weights_only=False.
    reason = str(error).rpartition("WeightsUnpickler error:")[2].strip()
    if asked := re.search(r"GLOBAL (\S+)|function (\S+)|class (\S+)", reason):
        return (
            f"{origin} was not loaded: it contains {asked[asked.lastindex or 0]}, "
            "which is code, not weights. Only tensors and plain values are loaded."
        )
    if "TorchScript archives" in reason:
        return (
            f"{origin} is a TorchScript program, not weights: save the state_dict() of "
            "its model, and give that file."
        )
    if isinstance(error, MemoryError):
        return f"{origin} is damaged: it asks for more memory than there is."
    is_usual = isinstance(error, RuntimeError | OSError | ValueError | EOFError)
    if is_usual or type(error).__name__ == "UnpicklingError":
        reason = (reason.splitlines() or ["it ends early"])[0]
        return (
            f"{origin} is not a file of weights, or is damaged or cut off ({reason})."
        )
    # Text and other bytes that look like a pickle at first.
    return (
        f"{origin} is not a file of weights, or is damaged: its bytes make no sense as "
        f"a PyTorch file ({type(error).__name__}: {first_line(error)})."
    )
