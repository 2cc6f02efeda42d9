"""Launches kernels, traceable by torch.compile or run by Triton's interpreter."""

import os
from typing import Any

import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def is_traced() -> bool:
    """Whether calls are traced, by torch.compile or a dispatch mode."""
    if torch.compiler.is_compiling():
        return True
    return bool(torch._C._len_torch_dispatch_stack() > 0)


def launch(kernel: Any) -> Any:
    """The kernel, to be launched with `[grid](...)`; torch sees it where it traces."""
    # wrap_triton takes JIT functions only, which the interpreter's are not. It imports
    # the compiler, which takes seconds.
    if INTERPRETED or not is_traced():
        return kernel
    from torch.library import wrap_triton

    return wrap_triton(kernel)
