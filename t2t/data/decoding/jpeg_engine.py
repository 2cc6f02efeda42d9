"""nvJPEG through its C interface: a batch by one call, on the caller's stream.

torchcodec and torchvision call the same library with pageable memory and without its
pool; torchvision also uses a stream of low priority and a lock that lets one thread
decode at a time.
"""

import ctypes
import ctypes.util
import glob
import queue
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from t2t.data.decoding.jpegs import Jpegs
from t2t.ops.ragged import Ragged, empty_rounded_up

# Numbers of the library's enumerations.
_HARDWARE = 3
_GREY, _PLANAR = 2, 3
_FULL_COLOUR = 0
_MAJOR_VERSION = 0
# The first release whose interface is declared here as it is.
_OLDEST = 12

_POINTER = ctypes.c_void_p
_NUMBER = ctypes.c_int
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "nvjpegGetProperty": (_NUMBER, _POINTER),
    "nvjpegCreateEx": (_NUMBER, _POINTER, _POINTER, ctypes.c_uint, _POINTER),
    "nvjpegJpegStateCreate": (_POINTER, _POINTER),
    "nvjpegJpegStreamCreate": (_POINTER, _POINTER),
    "nvjpegDecodeBatchedPreAllocate": (_POINTER, _POINTER, *(_NUMBER,) * 5),
    "nvjpegJpegStreamParseHeader": (_POINTER, _POINTER, ctypes.c_size_t, _POINTER),
    "nvjpegJpegStreamGetFrameDimensions": (_POINTER, _POINTER, _POINTER),
    "nvjpegDecodeBatchedSupported": (_POINTER, _POINTER, _POINTER),
    "nvjpegDecodeBatchedInitialize": (_POINTER, _POINTER, *(_NUMBER,) * 3),
    "nvjpegDecodeBatched": (_POINTER,) * 6,
}
# Functions that read a few bytes are called without releasing the GIL: acquiring it
# again can take milliseconds.
_QUICK = (
    "nvjpegJpegStreamParseHeader",
    "nvjpegJpegStreamGetFrameDimensions",
    "nvjpegDecodeBatchedSupported",
)


class JpegEngine:
    """One decoder of nvJPEG's hardware backend, for one thread at a time.

    It is never destroyed: at the end of the process CUDA may be gone before it.
    """

    is_upright = False

    def __init__(self) -> None:
        self._handle = _created("nvjpegCreateEx", _HARDWARE, None, None, 0)
        self._state = _created("nvjpegJpegStateCreate", self._handle)
        self._header = _created("nvjpegJpegStreamCreate", self._handle)
        self._answer = ctypes.c_int()
        self._size = (ctypes.c_uint * 2)()
        # From here on memory comes from a pool, whatever the size.
        sizes = (1, 1, 1, _FULL_COLOUR, _PLANAR)
        _call("nvjpegDecodeBatchedPreAllocate", self._handle, self._state, *sizes)

    def accepts(self, jpegs: Jpegs) -> Bool[np.ndarray, " images"]:
        """Which of them the hardware decodes: baseline JPEGs, in one scan.

        Their size must be the one in `jpegs`, for which memory is reserved: a file may
        state two sizes.
        """
        functions = _functions()
        read = functions["nvjpegJpegStreamParseHeader"]
        measure = functions["nvjpegJpegStreamGetFrameDimensions"]
        ask = functions["nvjpegDecodeBatchedSupported"]
        answer, size = self._answer, self._size
        handle, header = self._handle, self._header
        answer_at, width_at = ctypes.addressof(answer), ctypes.addressof(size)
        height_at = width_at + ctypes.sizeof(ctypes.c_uint)
        accepted = np.zeros(len(jpegs), dtype=bool)
        addresses = (jpegs.buffer.data_ptr() + jpegs.starts).tolist()
        sizes = np.stack([jpegs.widths, jpegs.heights], 1).tolist()
        for number, length in enumerate(jpegs.lengths.tolist()):
            failed = (
                read(handle, addresses[number], length, header)
                or measure(header, width_at, height_at)
                or ask(handle, header, answer_at)
            )
            fits = not failed and answer.value == 0 and size[:] == sizes[number]
            accepted[number] = fits
        return accepted

    def decode(self, jpegs: Jpegs, channels: int, device: torch.device) -> Ragged:
        """Pixels as stored, in one buffer; raises RuntimeError if one is damaged."""
        sizes = jpegs.heights * jpegs.widths
        total = int(sizes.sum()) * channels
        pixels = empty_rounded_up(total, device)
        stream = torch.cuda.current_stream(device)
        inputs = (jpegs.buffer.data_ptr() + jpegs.starts).astype(np.uint64)
        lengths = jpegs.lengths.astype(np.uint64)
        outputs = _outputs(pixels, jpegs, channels)
        kind = _PLANAR if channels == 3 else _GREY
        try:
            _call(
                "nvjpegDecodeBatchedInitialize",
                self._handle,
                self._state,
                *(len(jpegs), 1, kind),
            )
            _call(
                "nvjpegDecodeBatched",
                self._handle,
                self._state,
                *(each.ctypes.data for each in (inputs, lengths, outputs)),
                stream.cuda_stream,
            )
        finally:
            # Until then the library reads the files and writes the pixels.
            done = torch.cuda.Event(blocking=True)
            done.record(stream)
            done.synchronize()
        return Ragged.from_parts(
            pixels,
            torch.from_numpy(jpegs.heights),
            torch.from_numpy(jpegs.widths),
            torch.zeros(len(jpegs), dtype=torch.bool),
            channels,
        )


def _outputs(pixels: Tensor, jpegs: Jpegs, channels: int) -> np.ndarray:
    """The library's records, one per image: four pointers and four row lengths."""
    sizes = jpegs.heights * jpegs.widths
    starts = pixels.data_ptr() + channels * (np.cumsum(sizes) - sizes)
    records = np.zeros((len(jpegs), 8), dtype=np.uint64)
    for plane in range(channels):
        records[:, plane] = starts + plane * sizes
        records[:, 4 + plane] = jpegs.widths
    return records


class JpegEngines:
    """Engines on a device, one per thread that decodes at the same time."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._free: queue.SimpleQueue[JpegEngine] = queue.SimpleQueue()

    @contextmanager
    def borrowed(self) -> Iterator[JpegEngine]:
        """An engine that no other thread uses at the same time."""
        with torch.cuda.device(self.device):
            try:
                engine = self._free.get_nowait()
            except queue.Empty:
                engine = JpegEngine()
            try:
                yield engine
            finally:
                self._free.put(engine)


def has_library() -> bool:
    """Whether a usable nvJPEG is installed with PyTorch's packages or the system."""
    return bool(_functions())


def _created(name: str, *arguments: Any) -> int:
    made = ctypes.c_void_p()
    _call(name, *arguments, ctypes.addressof(made))
    assert made.value is not None
    return made.value


def _call(name: str, *arguments: Any) -> None:
    status = _functions()[name](*arguments)
    if status:
        raise RuntimeError(f"{name} failed with status {status}.")


@cache
def _functions() -> dict[str, Any]:
    """The library's functions by name; none if it is missing or too old."""
    for path in _paths():
        try:
            library, quick = ctypes.CDLL(path), ctypes.PyDLL(path)
            functions = {
                name: getattr(quick if name in _QUICK else library, name)
                for name in _SIGNATURES
            }
        except (OSError, AttributeError):
            continue
        for name, signature in _SIGNATURES.items():
            functions[name].argtypes = signature
        version = ctypes.c_int()
        asked = functions["nvjpegGetProperty"]
        failed = asked(_MAJOR_VERSION, ctypes.addressof(version))
        if not failed and version.value >= _OLDEST:
            return functions
    return {}


def _paths() -> list[str]:
    """Possible paths of nvJPEG: in the packages that ship it, or in the system."""
    patterns = []
    for package, folder in (
        ("torchvision", "../torchvision.libs"),
        ("torchcodec", "../torchcodec.libs"),
        ("nvidia", "*/lib"),
    ):
        spec = find_spec(package)
        for root in (spec and spec.submodule_search_locations) or ():
            patterns.append(str(Path(root) / folder / "libnvjpeg[.-]*so*"))
    found = [path for pattern in patterns for path in sorted(glob.glob(pattern))]
    system = ctypes.util.find_library("nvjpeg")
    return [*found, system] if system else found
