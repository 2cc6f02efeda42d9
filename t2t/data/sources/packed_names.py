"""Names of many files in one array of bytes."""

import os
from array import array
from collections.abc import Iterable, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


class PackedNames(Sequence[str]):
    """File names in one array of bytes.

    A million Python strings cost ten times the memory, are copied into every worker
    process by reference counting, and cannot be shared by the processes of a machine.
    """

    def __init__(self, data: bytes | bytearray, ends: Indices) -> None:
        self.data, self.ends = np.frombuffer(data, np.uint8), ends

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
        """Some of the names, in the order given."""
        whole, starts = self.data.tobytes(), np.insert(self.ends[:-1], 0, 0)
        first, last = starts[indices], self.ends[indices]
        parts = (whole[a:b] for a, b in zip(first.tolist(), last.tolist(), strict=True))
        return PackedNames(b"".join(parts), np.cumsum(last - first))
