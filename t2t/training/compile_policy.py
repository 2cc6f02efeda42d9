"""Whether and from which step a run is compiled."""

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from t2t.errors import UserError
from t2t.models.vit import VisionTransformer
from t2t.training.distributed import World
from t2t.training.run_files import ENVIRONMENT, read_json
from t2t.training.runtime import Runtime, uses_cuda_graphs

COMPILED_FROM = "compiled_from_step"
"""Its key in environment.json."""
COMPILE_SECONDS = 150.0
"""Time to compile a model and its augmentation, without a cache."""
FUSED_GAIN = 0.05
"""Share of a step that compiling saves where the fused operations run already."""
PLAIN_GAIN = 0.35
"""The same for other models, such as timm's DeiT-S."""


@dataclass(frozen=True)
class CompileDecision:
    """The decision of `--compile auto` after the first epoch."""

    is_made: bool = False
    from_step: int | None = None
    """The first compiled step; None for none."""

    def settings(self) -> dict[str, int | None]:
        """The entries of environment.json."""
        return {COMPILED_FROM: self.from_step} if self.is_made else {}


def compiles_at_once(runtime: Runtime, world: World) -> bool:
    """Whether the first step is compiled already.

    In fp16 steps are launched kernel by kernel, which many processes wait for: compiled
    steps have fewer.
    """
    if runtime.compile == "auto":
        on_cuda = world.device.type == "cuda"
        return on_cuda and world.is_distributed and not uses_cuda_graphs(runtime, world)
    return runtime.compile == "on"


def first_decision(runtime: Runtime, world: World) -> CompileDecision:
    """The decision before the first step."""
    if compiles_at_once(runtime, world):
        return CompileDecision(True, 0)
    return CompileDecision(is_made=runtime.compile == "off")


def earlier_decision(folder: Path) -> CompileDecision:
    """The decision that a run has made, for its resume."""
    try:
        environment = read_json(folder / ENVIRONMENT)
    except UserError:  # missing or damaged
        return CompileDecision()
    step = environment.get(COMPILED_FROM)
    from_step = step if isinstance(step, int) else None
    return CompileDecision(COMPILED_FROM in environment, from_step)


def seconds_saved(model: nn.Module, seconds_left: float) -> float:
    """The time that compiling now saves in the rest of a run; negative if it costs."""
    gain = FUSED_GAIN if isinstance(model, VisionTransformer) else PLAIN_GAIN
    return gain * seconds_left - COMPILE_SECONDS
