"""How a kernel is started: seen by the compiler, or by Triton's interpreter."""

import os
from typing import Any

from torch.library import wrap_triton

# Products and sums in one rounding, as long as the user does not say otherwise: Triton
# 3.9 asks for a choice, and what later releases take by themselves is slower.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def launch(kernel: Any) -> Any:
    """The kernel as something `[grid](...)` starts, traceable by torch.compile."""
    # The interpreter's functions are no JIT functions, which wrap_triton insists on.
    return kernel if INTERPRETED else wrap_triton(kernel)
