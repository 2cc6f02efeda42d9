"""Set before torch is imported, for every test."""

import os

from hypothesis import settings

# Some virtual machines advertise AMX but trap on it, which kills bfloat16 products.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# The same examples every time: a failure is then the change's, not the day's.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.load_profile("steady")
