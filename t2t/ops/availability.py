"""Where Triton's kernels can run."""

from importlib.util import find_spec

import torch
from torch import Tensor
from torch.autograd import forward_ad

# Asked once: compiled code must not ask again.
HAS_TRITON = find_spec("triton") is not None


def runs_kernels(x: Tensor, dtype: torch.dtype) -> bool:
    """Whether kernels of half precision can compute with x in this type."""
    is_half = dtype in (torch.bfloat16, torch.float16)
    return HAS_TRITON and x.is_cuda and is_half and not needs_torchs_own()


def needs_torchs_own() -> bool:
    """Whether somebody looks into operations who knows but torch's own.

    As do torch.jit, torch.func and derivatives forward; the compiler knows ours.
    """
    if torch.compiler.is_compiling():
        return False
    is_traced: bool = torch.jit.is_tracing()  # type: ignore[attr-defined]
    return is_traced or is_transformed() or forward_ad._current_level >= 0


def is_transformed() -> bool:
    """Whether torch.func computes: vmap, or derivatives of functions."""
    if torch.compiler.is_compiling():
        return False
    return bool(torch._C._are_functorch_transforms_active())
