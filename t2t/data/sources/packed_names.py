"""Names of many files in one array of bytes."""

import os
from array import array
from collections.abc import Iterable, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


Buffer = bytes | bytearray | npt.NDArray[np.uint8]
NONE = np.zeros(0, np.uint8)


class PackedNames(Sequence[str]):
    """File names in one array of bytes.

    A million Python strings cost ten times the memory, are copied into every worker
    process by reference counting, and cannot be shared by the processes of a machine.
    """

    def __init__(self, data: Buffer, ends: Indices) -> None:
        # An empty array has no buffer.
        self.data = np.frombuffer(data, np.uint8) if len(ends) else NONE
        self.ends = ends

    @classmethod
    def of(cls, names: Iterable[str]) -> "PackedNames":
        """The names of an iterable, which is read once."""
        data, ends = bytearray(), array("q")
        for name in names:
            data += os.fsencode(name)
            ends.append(len(data))
        return cls(data, np.array(ends, np.int64))

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> "PackedNames": ...
    def __getitem__(self, index: int | slice) -> "str | PackedNames":
        if isinstance(index, slice):
            return PackedNames.of(self[n] for n in range(*index.indices(len(self))))
        start = int(self.ends[index - 1]) if index else 0
        return os.fsdecode(self.data[start : int(self.ends[index])].tobytes())

    def take(self, indices: Indices) -> "PackedNames":
        """Those of some ascending indices."""
        sizes = np.diff(self.ends, prepend=0)
        is_kept = np.zeros(len(self), np.bool_)
        is_kept[indices] = True
        return PackedNames(
            self.data[np.repeat(is_kept, sizes)], np.cumsum(sizes[is_kept])
        )
