"""Set before torch is imported, for every test."""

import os

# Some virtual machines advertise AMX but trap on it, which kills bfloat16 products.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
