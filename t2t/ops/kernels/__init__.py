"""Triton kernels behind the operations; imported only where Triton is installed."""

import os

# Fused multiply-add, unless the user sets it: Triton 3.9 warns without a choice, and
# the default of later releases is slower.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
