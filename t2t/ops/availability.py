"""Whether Triton is installed, asked once: compiled code must not ask again."""

from importlib.util import find_spec

HAS_TRITON = find_spec("triton") is not None
