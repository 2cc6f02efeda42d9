"""Where Triton kernels can run."""

from importlib.util import find_spec

import torch
from torch import Tensor
from torch.autograd import forward_ad

# Looked up once: compiled code must not repeat it.
HAS_TRITON = find_spec("triton") is not None

MATMUL_SHARED_MEMORY = 99 << 10
"""Bytes of shared memory that kernels with matrix products may use.

Every NVIDIA GPU since Ampere has them. Turing has 64 KiB, and Triton compiles matrix
products without tensor cores there: the plain path is faster.
"""


def runs_kernels(x: Tensor, dtype: torch.dtype) -> bool:
    """Whether Triton kernels can compute with x in this half precision."""
    is_half = dtype in (torch.bfloat16, torch.float16)
    return HAS_TRITON and x.is_cuda and is_half and not needs_torch_ops()


def runs_matmul_kernels(x: Tensor, dtype: torch.dtype) -> bool:
    """The same for kernels with matrix products, which need more shared memory."""
    return runs_kernels(x, dtype) and shared_memory(x.device) >= MATMUL_SHARED_MEMORY


def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that one program of a kernel can use on a GPU."""
    if not torch.cuda.is_available():  # fake tensors of a GPU that is not here
        return MATMUL_SHARED_MEMORY
    properties = torch.cuda.get_device_properties(device)
    return int(properties.shared_memory_per_block_optin)


# As `torch.compiler.assume_constant_result` does, which imports the compiler: seconds.
shared_memory._dynamo_marked_constant = True  # type: ignore[attr-defined]


def needs_torch_ops() -> bool:
    """True under tracing or torch.func, which do not know our operators.

    torch.compile knows them.
    """
    if torch.compiler.is_compiling():
        return False
    is_traced: bool = torch.jit.is_tracing()  # type: ignore[attr-defined]
    return is_traced or is_transformed() or forward_ad._current_level >= 0


def is_transformed() -> bool:
    """Whether a torch.func transform is active: vmap, grad, jvp."""
    if torch.compiler.is_compiling():
        return False
    return bool(torch._C._are_functorch_transforms_active())
