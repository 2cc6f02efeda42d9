"""Starts CUDA in a thread, while the main thread imports the rest and opens data."""

import os
from contextlib import suppress
from threading import Thread

from t2t.data.streaming.launcher import feeds_gpu


def start_cuda_early(device: str | None) -> Thread | None:
    """Begins to set up the GPU that a run will use, if there is one.

    Creating CUDA's context and loading its first kernels takes about two seconds.
    """
    if not feeds_gpu(device):
        return None
    thread = Thread(
        target=start_cuda, args=(device,), name="t2t-start-cuda", daemon=True
    )
    thread.start()
    return thread


def start_cuda(device: str | None) -> None:
    """Creates the context, and launches a few kernels."""
    # The run meets the same errors, and explains them.
    with suppress(Exception):
        import torch

        from t2t.training.distributed import find_device

        found = find_device(device, int(os.environ.get("LOCAL_RANK", "0")))
        if found.type == "cuda":
            matrix = torch.zeros(64, 64, device=found).clone()
            (matrix.bfloat16() @ matrix.bfloat16()).float().sum()
            torch.cuda.synchronize(found)
