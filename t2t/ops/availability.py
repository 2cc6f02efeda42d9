"""Where Triton's kernels can run."""

from importlib.util import find_spec

import torch
from torch import Tensor

# Asked once: compiled code must not ask again.
HAS_TRITON = find_spec("triton") is not None


def runs_kernels(x: Tensor, dtype: torch.dtype) -> bool:
    """Whether kernels of half precision can compute with x in this type."""
    return HAS_TRITON and x.is_cuda and dtype in (torch.bfloat16, torch.float16)
