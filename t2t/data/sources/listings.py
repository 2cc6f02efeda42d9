"""Which files exist, by listing their folders once."""

import os
from array import array

import numpy as np
import numpy.typing as npt

from t2t.data.decoding.headers import IMAGE_SUFFIXES
from t2t.data.sources.packed_names import Indices

NOT_THERE = -2
AS_NAMED = -1
"""A file of exactly that name; from 0 on, the number of a suffix to add."""


class Listing:
    """The files of a folder as sorted hashes, which take less memory than names.

    Two of a million names have the same 64 bits once in ten million folders.
    """

    def __init__(self, folder: str) -> None:
        names, stems, kinds = array("q"), array("q"), array("h")
        self.suffixes: list[str] = []
        numbers: dict[str, int] = {}
        try:
            with os.scandir(folder or ".") as entries:
                for entry in entries:
                    name = entry.name
                    names.append(hash(name))
                    stem, suffix = os.path.splitext(name)
                    if suffix.lower() in IMAGE_SUFFIXES and name[0] != ".":
                        stems.append(hash(stem))
                        kinds.append(numbers.setdefault(suffix, len(numbers)))
        except (FileNotFoundError, NotADirectoryError, ValueError):
            pass  # no file is there, then
        self.suffixes = list(numbers)
        self.num_images = len(stems)
        self._names = np.sort(np.array(names, np.int64))
        order = np.argsort(found := np.array(stems, np.int64), kind="stable")
        self._stems = found[order]
        self._kinds = np.array(kinds, np.int64)[order]

    def find(self, hashes: Indices) -> npt.NDArray[np.int64]:
        """For each hash of a name: AS_NAMED, the number of a suffix, or NOT_THERE."""
        found = np.full(len(hashes), NOT_THERE, np.int64)
        found[_is_in(hashes, self._names)] = AS_NAMED
        left = np.flatnonzero(found == NOT_THERE)
        has_stem = left[_is_in(hashes[left], self._stems)]
        first = np.searchsorted(self._stems, hashes[has_stem])
        found[has_stem] = self._kinds[first]
        return found


def _is_in(hashes: Indices, ordered: Indices) -> npt.NDArray[np.bool_]:
    if not len(ordered):
        return np.zeros(len(hashes), np.bool_)
    index = np.minimum(np.searchsorted(ordered, hashes), len(ordered) - 1)
    return ordered[index] == hashes


class Listings:
    """The listings of folders, each read once."""

    def __init__(self) -> None:
        self._known: dict[str, Listing] = {}

    def of(self, folder: str) -> Listing:
        """The listing of a folder; an empty one if there is no such folder."""
        if folder not in self._known:
            self._known[folder] = Listing(folder)
        return self._known[folder]
