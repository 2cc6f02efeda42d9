"""Settings of the machine, which are not part of a recipe."""

import math
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch

import t2t
from t2t.config import MAX_HANG_MINUTES, MAX_WORKERS, to_json
from t2t.data.decoding.damage import DEFAULT_MAX_DAMAGED, damage_limit
from t2t.data.decoding.headers import DEFAULT_MAX_PIXELS, MAX_PIXELS_LIMIT
from t2t.data.sources import Splits
from t2t.errors import UserError, choose, require
from t2t.training.distributed import (
    PARALLELISMS,
    Parallelism,
    World,
    set_cuda_variables,
)
from t2t.training.recipe import Recipe
from t2t.user_code import digests

Precision = Literal["bf16", "fp16", "fp32"]
Compile = Literal["auto", "on", "off"]
COMPILE_CHOICES = get_args(Compile)
PRECISIONS = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
}
RESIDUALS: dict[str, torch.dtype | None] = {"half": None, "fp32": torch.float32}
"""Values for `Encoder.set_residual_dtype`."""


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """Settings of the machine: device, precision, parallelism, workers."""

    device: str | None = None
    """cuda, mps or cpu; None takes the best available."""
    precision: Precision | None = None
    """None is bf16 on CUDA, fp16 on GPUs before Ampere, and fp32 elsewhere."""
    residual: Literal["half", "fp32"] = "half"
    """Precision of the residual stream in fused blocks: half follows `precision`."""
    compile: Compile = "auto"
    """torch.compile of a step: from the first, never, or once it saves more than it
    costs (auto; with shards never, in fp16 with several GPUs from the first)."""
    micro_batch: int | None = None
    """Images per forward pass on a device; gradients are accumulated over the batch.

    The step is the same except for dropout, stochastic depth and batch norm, which work
    on one micro-batch at a time.
    """
    parallelism: Parallelism = "ddp"
    """With several processes: ddp, fsdp or hybrid."""
    workers: int | None = None
    """Threads or processes that read and decode images; None is one per core."""
    threads: int | None = None
    """Compute threads on a CPU; None is the number of idle cores."""
    checkpoint_minutes: float = 5.0
    """Time between checkpoints; evaluations write one too if that takes little time."""
    hang_minutes: float = 20.0
    """With several processes: the run ends once one has hung for so long; 0 never
    ends it."""
    max_damaged: str = DEFAULT_MAX_DAMAGED
    """Damaged images that are skipped before the run stops: a share (at least 10) or a
    number."""
    max_pixels: int = DEFAULT_MAX_PIXELS
    """Images with more pixels are logged and skipped."""

    @property
    def dtype(self) -> torch.dtype:
        """The type of the numbers that a forward pass computes with."""
        return PRECISIONS[self.precision or "fp32"]

    def __post_init__(self) -> None:
        """Checks the ranges of values."""
        most_threads = ("threads", MAX_WORKERS)
        most_workers = ("workers", MAX_WORKERS)
        for name, most in (("micro_batch", math.inf), most_workers, most_threads):
            if getattr(self, name) is not None:
                require(name, getattr(self, name), 1, most)
        require("hang_minutes", self.hang_minutes, 0, MAX_HANG_MINUTES)
        damage_limit(self.max_damaged, 0)
        require("max_pixels", self.max_pixels, 1, MAX_PIXELS_LIMIT)


def default_precision(device: torch.device) -> Precision:
    """bf16 on CUDA, fp16 on GPUs that only emulate bf16 (before Ampere), else fp32."""
    if device.type != "cuda":
        return "fp32"
    has_bf16 = torch.cuda.get_device_capability(device) >= (8, 0)
    return "bf16" if has_bf16 else "fp16"


def uses_cuda_graphs(runtime: Runtime, world: World) -> bool:
    """Whether the host never waits for a step: on GPUs, but not with fp16's scale."""
    return world.device.type == "cuda" and runtime.precision != "fp16"


def captures_steps(runtime: Runtime, world: World, is_compiled: bool) -> bool:
    """Whether a step is a CUDA graph, its collectives included.

    One that is compiled and sharded is not: its capture has not been tried.
    """
    is_sharded = world.is_distributed and PARALLELISMS[runtime.parallelism]
    return uses_cuda_graphs(runtime, world) and not (is_sharded and is_compiled)


def resolve_runtime(runtime: Runtime, world: World) -> Runtime:
    """The runtime with every None replaced by the default of the device."""
    precision = runtime.precision or default_precision(world.device)
    choose("precision", precision, PRECISIONS)
    choose("residual", runtime.residual, RESIDUALS)
    choose("compile", runtime.compile, dict.fromkeys(COMPILE_CHOICES))
    if runtime.compile == "on" and world.device.type == "cpu":
        check_cpp_compiler()
    return replace(runtime, precision=precision, device=world.device.type)


def check_cpp_compiler() -> None:
    """Raises an error if torch.compile has no compiler of C++ for the CPU."""
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(compiler) is None:
        raise UserError(
            f"compile=on needs a C++ compiler on a CPU, and {compiler} is not here: "
            "install it (on Debian and Ubuntu, apt install g++), or use compile=off."
        )


@contextmanager
def deterministic(strictly: bool = True, compiled: bool = False) -> Iterator[None]:
    """Uses torch's deterministic kernels, for bit-identical gradients.

    Only for models: elsewhere torch would choose slow kernels for what is exact
    already. If `strictly`, a kernel without a deterministic form is an error; if not,
    it is used, and so is attention's faster backward pass.
    """
    was = torch.get_deterministic_debug_mode()
    memory: Any = torch.utils.deterministic
    filled = memory.fill_uninitialized_memory
    memory.fill_uninitialized_memory = False
    set_deterministic_mode(2 if strictly else 1, compiled)
    try:
        yield
    finally:
        set_deterministic_mode(was, compiled)
        memory.fill_uninitialized_memory = filled


def set_deterministic_mode(mode: int, compiled: bool) -> None:
    """Allows any kernel (0), or warns of (1) or refuses (2) those that differ."""
    if compiled:  # for the compiler too, which this imports: that takes seconds
        torch.use_deterministic_algorithms(mode > 0, warn_only=mode == 1)
    else:
        torch.set_deterministic_debug_mode(mode)


def make_deterministic(runtime: Runtime) -> None:
    """Sets torch to bit-identical results when a run is repeated."""
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    set_cuda_variables()
    # Beside half precision, float32 products may use TF32.
    exact = runtime.precision == "fp32"
    torch.set_float32_matmul_precision("highest" if exact else "high")


def runtime_settings(runtime: Runtime) -> dict[str, Any]:
    """The settings that environment.json records."""
    names = ("precision", "residual", "compile", "micro_batch", "parallelism")
    return {name: getattr(runtime, name) for name in names}


def shared_settings(
    recipe: Recipe, runtime: Runtime, world: World, splits: Splits, fresh: bool
) -> dict[str, Any]:
    """The settings that all processes of a run must share."""
    # Nodes may have the data at different paths.
    data = {
        "num_images": len(splits.train),
        "num_validation": len(splits.val),
        "classes": dict(enumerate(splits.train.classes)),
    }
    others: dict[str, Any] = {"data": data, "fresh": fresh, "t2t": t2t.__version__}
    others["code"] = digests()
    if runtime.parallelism == "hybrid":
        others["per_node"] = world.local_size
    return {**to_json(recipe), **runtime_settings(runtime), **others}
