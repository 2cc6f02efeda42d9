"""What becomes of memory that tensors on a CPU no longer need."""

import torch

# glibc takes no note of larger blocks.
_BLOCK = 31 << 20


def keep_freed_memory() -> None:
    """Leaves freed blocks of up to 31 MB with the process, ready to be used again.

    Otherwise layers of a few hundred tokens spend a tenth of their time on fresh pages.
    """
    # glibc keeps every block smaller than the largest it ever gave back, and twice as
    # much in all. Nothing is written, so nothing is really taken.
    torch.empty(_BLOCK, dtype=torch.uint8)
