"""Launches kernels, traceable by torch.compile or run by Triton's interpreter."""

import os
from typing import Any

from torch.library import wrap_triton

# Fused multiply-add, unless the user sets it: Triton 3.9 warns without a choice, and
# the default of later releases is slower.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def launch(kernel: Any) -> Any:
    """The kernel, to be launched with `[grid](...)`, traceable by torch.compile."""
    # wrap_triton takes JIT functions only, which the interpreter's are not.
    return kernel if INTERPRETED else wrap_triton(kernel)
