"""Suppresses warnings of image decoders, which do not name the file."""

import ctypes
import logging
import re
import threading
import warnings
from contextlib import suppress
from functools import cache
from typing import Any

# Pillow warns about damaged metadata.
_IGNORED: Any = ("ignore", None, Warning, re.compile(r"PIL\b"), 0)
# Without a handler, Python would print Pillow's log messages of level warning or above.
logging.getLogger("PIL").addHandler(logging.NullHandler())


class Muted:
    """Drops what decoders print while any thread is inside this context.

    libjpeg, libpng and libtiff print to C's `stderr`, which is set to /dev/null here;
    `sys.stderr` and C++'s `std::cerr` are not changed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_inside = 0

    def __enter__(self) -> None:
        with self._lock:
            self._num_inside += 1
            if self._num_inside == 1:
                warnings.filters.insert(0, _IGNORED)  # type: ignore[attr-defined]
                _point_stderr(to_nothing=True)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._num_inside -= 1
            if self._num_inside == 0:
                with suppress(ValueError):  # the filters may have been reset meanwhile
                    warnings.filters.remove(_IGNORED)  # type: ignore[attr-defined]
                _point_stderr(to_nothing=False)


MUTED = Muted()
"""Shared by all threads of this process."""


def _point_stderr(*, to_nothing: bool) -> None:
    if (streams := _c_streams()) is not None:
        variable, original, nothing = streams
        variable.value = nothing if to_nothing else original


@cache
def _c_streams() -> tuple[ctypes.c_void_p, int, int] | None:
    """C's variable `stderr`, its value, and a stream to /dev/null."""
    try:
        library = ctypes.CDLL(None)
        variable = ctypes.c_void_p.in_dll(library, "stderr")
        library.fopen.restype = ctypes.c_void_p
        nothing = library.fopen(b"/dev/null", b"w")
    except (OSError, ValueError, AttributeError, TypeError):  # not Linux
        return None
    if not nothing or not variable.value:
        return None
    return variable, variable.value, nothing
