"""What the machine decides about a run, as against what its recipe does."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

import t2t
from t2t.config import MAX_WORKERS, to_json
from t2t.data.decoding.headers import DEFAULT_MAX_PIXELS, MAX_PIXELS_LIMIT
from t2t.data.sources import Splits
from t2t.errors import choose, require
from t2t.training.distributed import Parallelism, World
from t2t.training.recipe import Recipe
from t2t.user_code import digests

PRECISIONS = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
}
RESIDUALS: dict[str, torch.dtype | None] = {"half": None, "fp32": torch.float32}
"""Values of `Encoder.residual_dtype`."""


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """What the machine decides: none of it is part of the result's recipe."""

    device: str | None = None
    """cuda, mps or cpu; found by itself when None."""
    precision: Literal["bf16", "fp16", "fp32"] | None = None
    """bf16 on CUDA and fp32 elsewhere when None."""
    residual: Literal["half", "fp32"] = "half"
    """Precision of the residual stream in fused blocks: half follows `precision`."""
    compile: bool | None = None
    """torch.compile of the model; on CUDA when None."""
    micro_batch: int | None = None
    """Images per forward pass on a device; gradients are accumulated over the batch.

    The step is the same except for dropout, stochastic depth and batch norm, which work
    on one micro-batch at a time.
    """
    parallelism: Parallelism = "ddp"
    """With several processes: ddp, fsdp or hybrid."""
    workers: int | None = None
    """Who read and decode images, threads or processes; as many as cores when None."""
    threads: int | None = None
    """Threads for computing on a CPU; the number of idle cores when None."""
    checkpoint_minutes: float = 5.0
    """Time between checkpoints, beside those after evaluations."""
    damage_limit: int = 100
    """Damaged images that are named and skipped before the run stops."""
    max_pixels: int = DEFAULT_MAX_PIXELS
    """Images with more pixels are logged and skipped."""

    def __post_init__(self) -> None:
        """Refuses numbers that no machine has use for."""
        most_threads = ("threads", MAX_WORKERS)
        most_workers = ("workers", MAX_WORKERS)
        for name, most in (("micro_batch", math.inf), most_workers, most_threads):
            if getattr(self, name) is not None:
                require(name, getattr(self, name), 1, most)
        require("damage_limit", self.damage_limit, 0)
        require("max_pixels", self.max_pixels, 1, MAX_PIXELS_LIMIT)


def resolve_runtime(runtime: Runtime, world: World) -> Runtime:
    """The machine with every open choice made for the device that was found."""
    on_cuda = world.device.type == "cuda"
    precision = runtime.precision or ("bf16" if on_cuda else "fp32")
    choose("precision", precision, PRECISIONS)
    choose("residual", runtime.residual, RESIDUALS)
    compiled = on_cuda if runtime.compile is None else runtime.compile
    return replace(
        runtime, precision=precision, compile=compiled, device=world.device.type
    )


@contextmanager
def deterministic(strictly: bool = True) -> Iterator[None]:
    """Lets torch's own kernels sum gradients in one order, for the same bits again.

    Only where a model is computed: elsewhere torch would choose slow ways for what is
    exact already. Strictly, a kernel that has no such order is an error; else it is
    taken, and so is attention's faster backward pass.
    """
    was = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic
    filled = memory.fill_uninitialized_memory
    memory.fill_uninitialized_memory = False
    torch.use_deterministic_algorithms(True, warn_only=not strictly)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was, warn_only=warned)
        memory.fill_uninitialized_memory = filled


def make_deterministic(runtime: Runtime) -> None:
    """Chooses algorithms that give the same bits every time a run is repeated."""
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    # Without this choice, of which it is the usual size, torch takes no product of
    # cuBLAS for repeatable.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # What is left in float32 beside half precision need not be more exact than it.
    exact = runtime.precision == "fp32"
    torch.set_float32_matmul_precision("highest" if exact else "high")


def runtime_settings(runtime: Runtime) -> dict[str, Any]:
    """The machine's settings that a record should tell."""
    names = ("precision", "residual", "compile", "micro_batch", "parallelism")
    return {name: getattr(runtime, name) for name in names}


def shared_settings(
    recipe: Recipe, runtime: Runtime, world: World, splits: Splits, fresh: bool
) -> dict[str, Any]:
    """What has to be the same in all processes that train together."""
    # Each machine may have its data elsewhere, if it is the same.
    data = {
        "num_images": len(splits.train),
        "num_validation": len(splits.val),
        "classes": dict(enumerate(splits.train.classes)),
    }
    about: dict[str, Any] = {"data": data, "fresh": fresh, "t2t": t2t.__version__}
    about["code"] = digests()
    if runtime.parallelism == "hybrid":
        about["per_node"] = world.local_size
    return {**to_json(recipe), **runtime_settings(runtime), **about}
