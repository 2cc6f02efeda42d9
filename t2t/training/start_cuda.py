"""Starts CUDA in a thread, while the main thread imports the rest and opens data.

So does Triton, which compiles a part of its own, and TensorBoard, if it is installed.
"""

import atexit
import importlib
import importlib.util
import os
import sys
import threading
from contextlib import suppress
from threading import Event, Thread
from typing import TYPE_CHECKING

from t2t.data.streaming.launcher import end_spare_launchers, feeds_gpu
from t2t.training.compile_server import end_spare_server
from t2t.training.switch_interval import switch_often

if TYPE_CHECKING:
    import torch

NAME = "t2t-start-cuda"
END_SECONDS = 10.0
"""Creating a context takes one to three."""


def start_cuda_early(device: str | None) -> Thread | None:
    """Begins to set up the GPU that a run will use, if there is one.

    Creating CUDA's context, loading its first kernels and Triton take seconds.
    """
    if not feeds_gpu(device):
        return None
    switch_often()
    is_over = Event()
    thread = Thread(target=start_cuda, args=(device, is_over), name=NAME, daemon=True)

    def end() -> None:
        """Lets it end: Python must not be torn down while it works."""
        is_over.set()
        thread.join(END_SECONDS)

    thread.start()
    atexit.register(end)
    return thread


def leave(status: int) -> int:
    """Exits at once if CUDA still starts, else returns the exit status.

    A part of PyTorch that is imported while Python ends prints errors. After Ctrl-C the
    thread may even wait for ever, for a lock on imports that the main thread still has.
    """
    if any(thread.name == NAME for thread in threading.enumerate()):
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):  # closed, or None
                stream.flush()
        end_spare_launchers()
        end_spare_server()
        os._exit(status)
    return status


def start_cuda(device: str | None, is_over: Event) -> None:
    """Creates the context, loads kernels and Triton, until the program is over."""
    # The run meets the same errors, and explains them.
    with suppress(Exception):
        from t2t.training.distributed import find_device

        found = find_device(device, int(os.environ.get("LOCAL_RANK", "0")))
        if found.type != "cuda":
            return
        for part in (create_context, load_triton, draw_numbers, load_tensorboard):
            if is_over.is_set():
                return
            part(found)


def create_context(device: "torch.device") -> None:
    """Creates CUDA's context, and launches a few kernels."""
    import torch

    matrix = torch.zeros(64, 64, device=device).clone()
    (matrix.bfloat16() @ matrix.bfloat16()).float().sum()
    torch.cuda.synchronize(device)


def load_triton(device: "torch.device") -> None:
    """Lets Triton build its driver, and hash its own files, which its cache needs."""
    with suppress(ImportError):
        from triton.runtime import driver
        from triton.runtime.cache import triton_key

        driver.active.get_current_target()
        triton_key()


def draw_numbers(device: "torch.device") -> None:
    """Loads the kernels that draw random numbers, dozens of them."""
    import torch

    from t2t.data.rng import CounterRng

    keys = torch.arange(8, device=device)
    rng = CounterRng.of(0, keys[0], keys)
    rng.beta("start", 0.8)
    rng.integers("start", 2)
    rng.uniform("start", low=0.1, high=0.9)


def load_tensorboard(device: "torch.device") -> None:
    """Imports what a run logs to, if it is installed."""
    if importlib.util.find_spec("tensorboard") is not None:
        importlib.import_module("torch.utils.tensorboard")
