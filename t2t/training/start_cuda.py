"""Starts CUDA in a thread, while the main thread imports the rest and opens data.

So does Triton, which compiles a part of its own, and TensorBoard, if it is installed.
"""

import importlib
import importlib.util
import os
from contextlib import suppress
from threading import Thread

from t2t.data.streaming.launcher import feeds_gpu


def start_cuda_early(device: str | None) -> Thread | None:
    """Begins to set up the GPU that a run will use, if there is one.

    Creating CUDA's context, loading its first kernels and Triton take seconds.
    """
    if not feeds_gpu(device):
        return None
    thread = Thread(
        target=start_cuda, args=(device,), name="t2t-start-cuda", daemon=True
    )
    thread.start()
    return thread


def start_cuda(device: str | None) -> None:
    """Creates the context, launches a few kernels, and loads Triton."""
    # The run meets the same errors, and explains them.
    with suppress(Exception):
        import torch

        from t2t.training.distributed import find_device

        found = find_device(device, int(os.environ.get("LOCAL_RANK", "0")))
        if found.type == "cuda":
            matrix = torch.zeros(64, 64, device=found).clone()
            (matrix.bfloat16() @ matrix.bfloat16()).float().sum()
            torch.cuda.synchronize(found)
            load_triton()
            if importlib.util.find_spec("tensorboard") is not None:
                importlib.import_module("torch.utils.tensorboard")


def load_triton() -> None:
    """Lets Triton build its driver, and hash its own files, which its cache needs."""
    from triton.runtime import driver
    from triton.runtime.cache import triton_key

    driver.active.get_current_target()
    triton_key()
