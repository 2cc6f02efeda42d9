"""Starts CUDA in a thread, while the main thread imports the rest and opens data.

So does Triton, which compiles a part of its own, and TensorBoard, if it is installed.
"""

import importlib
import importlib.util
import os
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING

from t2t.data.streaming.launcher import feeds_gpu
from t2t.training.switch_interval import switch_often

if TYPE_CHECKING:
    import torch


def start_cuda_early(device: str | None) -> Thread | None:
    """Begins to set up the GPU that a run will use, if there is one.

    Creating CUDA's context, loading its first kernels and Triton take seconds.
    """
    if not feeds_gpu(device):
        return None
    switch_often()
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
            draw_numbers(found)
            if importlib.util.find_spec("tensorboard") is not None:
                importlib.import_module("torch.utils.tensorboard")


def draw_numbers(device: "torch.device") -> None:
    """Loads the kernels that draw random numbers, dozens of them."""
    import torch

    from t2t.data.rng import CounterRng

    keys = torch.arange(8, device=device)
    rng = CounterRng.of(0, keys[0], keys)
    rng.beta("start", 0.8)
    rng.integers("start", 2)
    rng.uniform("start", low=0.1, high=0.9)


def load_triton() -> None:
    """Lets Triton build its driver, and hash its own files, which its cache needs."""
    from triton.runtime import driver
    from triton.runtime.cache import triton_key

    driver.active.get_current_target()
    triton_key()
