"""A run: all the state that changes while training."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer as TorchOptimizer

from t2t.errors import UserError
from t2t.models.checkpoint_io.adapt import shorten
from t2t.models.create import create_model
from t2t.models.vit import VisionTransformer
from t2t.models.weights import Loaded, put_weights
from t2t.training.distributed import (
    World,
    batch_statistics,
    parallelize,
    parallelize_copy,
)
from t2t.training.optim import build_optimizers
from t2t.training.recipe import EMA, Recipe
from t2t.training.runtime import RESIDUALS, Runtime

# Settings of an optimizer's groups that follow from the device, not from the run.
OF_THE_DEVICE = ("foreach", "fused", "capturable")


class State(NamedTuple):
    """A run at a moment: tensors by name, and numbers that JSON holds exactly."""

    tensors: dict[str, Tensor]
    numbers: dict[str, Any]


@dataclass
class TrainState:
    """Model, average, optimizers and counters: what a checkpoint holds."""

    model: nn.Module
    """As it is trained: the plain model, or spread over processes."""
    ema: nn.Module | None
    optimizers: list[TorchOptimizer]
    scaler: torch.amp.GradScaler
    step: int = 0
    num_skipped: int = 0
    """Steps left out since their gradient was not finite."""
    num_skipped_in_a_row: int = 0
    """Skipped steps since the last step that was applied."""
    data: dict[str, Any] = field(default_factory=dict)
    """What it learns from: `classes`, `num_images` to train on, their `fingerprint`."""
    loaded: Loaded | None = None
    """The report on the weights it starts from, if it does."""

    @property
    def plain(self) -> nn.Module:
        """The model without what spreads it over processes."""
        inner = getattr(self.model, "module", self.model)
        assert isinstance(inner, nn.Module)
        return inner

    @property
    def delivered(self) -> nn.Module:
        """The averaged model, or the raw one where no average is kept."""
        return self.plain if self.ema is None else self.ema

    @cached_property
    def ema_pairs(self) -> list[tuple[list[Tensor], list[Tensor]]]:
        """Parameters, and batch statistics, of the average and of the model."""
        assert self.ema is not None
        own, raw = self.ema, self.plain
        return [
            (list(own.parameters()), list(raw.parameters())),
            (batch_statistics(own), batch_statistics(raw)),
        ]

    def state(self) -> State:
        """All of it as it is now; the tensors are the run's own, not copies."""
        tensors, numbers = self.weights(), {}
        for key, value in {**self.optimizer_state(), **self.group_state()}.items():
            if isinstance(value, Tensor):
                tensors[key] = value
            else:
                numbers[key] = value
        return State(
            tensors,
            {
                "step": self.step,
                "num_skipped": self.num_skipped,
                "num_skipped_in_a_row": self.num_skipped_in_a_row,
                "data": self.data,
                "scaler": self.scaler.state_dict(),
                "optimizers": numbers,
            },
        )

    def weights(self) -> dict[str, Tensor]:
        """The tensors of the model and of the average."""
        parts = {"model": self.plain, "ema": self.ema}
        return {
            f"{part}/{name}": tensor
            for part, model in parts.items()
            if model is not None
            for name, tensor in model.state_dict().items()
        }

    def optimizer_state(self) -> dict[str, Any]:
        """What the optimizers remember, by parameter name; empty before any step."""
        names: dict[Tensor, str] = {
            parameter: name for name, parameter in self.plain.named_parameters()
        }
        return {
            f"optimizer/{number}/{names[parameter]}/{key}": value
            for number, optimizer in enumerate(self.optimizers)
            for parameter, memory in optimizer.state.items()
            for key, value in memory.items()
        }

    def group_state(self) -> dict[str, Any]:
        """The settings of the optimizers' groups, where some keep counters too."""
        return {
            f"group/{number}/{run_folder}/{key}": value
            for number, optimizer in enumerate(self.optimizers)
            for run_folder, group in enumerate(optimizer.param_groups)
            for key, value in group.items()
            if key != "params" and not isinstance(value, torch.dtype)
        }

    def empty_like(self, key: str, size: torch.Size, dtype: torch.dtype) -> Tensor:
        """An empty tensor for what an optimizer remembers, sharded as its parameter."""
        if key.startswith("optimizer/"):
            parameter = self.plain.get_parameter(key.split("/")[2])
            if parameter.shape == size:
                return torch.empty_like(parameter, dtype=dtype, requires_grad=False)
        return torch.empty(size, dtype=dtype)

    def restore(self, state: State) -> None:
        """Takes back what `state` gave; the weights were read into their own place."""
        numbers = state.numbers
        told = {**state.tensors, **numbers["optimizers"]}
        names: dict[Tensor, str] = {p: n for n, p in self.plain.named_parameters()}
        for number, optimizer in enumerate(self.optimizers):
            memories: dict[str, dict[str, Any]] = {}
            groups: dict[str, dict[str, Any]] = {}
            for key, value in told.items():
                part, _, path = key.partition(f"/{number}/")
                owner, _, name = path.rpartition("/")
                if part == "optimizer":
                    memories.setdefault(owner, {})[name] = value
                elif part == "group":
                    groups.setdefault(owner, {})[name] = value
            packed = optimizer.state_dict()
            for run_folder, group in enumerate(packed["param_groups"]):
                here = optimizer.param_groups[run_folder]
                for name, value in groups[str(run_folder)].items():
                    if name in OF_THE_DEVICE:
                        continue
                    as_was = isinstance(value, list) and isinstance(here[name], tuple)
                    group[name] = tuple(value) if as_was else value
                for index, parameter in zip(
                    group["params"], here["params"], strict=True
                ):
                    if names[parameter] in memories:
                        packed["state"][index] = memories[names[parameter]]
            optimizer.load_state_dict(packed)
        if numbers["scaler"]:  # there is none of a run that was not in fp16 till now
            self.scaler.load_state_dict(numbers["scaler"])
        self.step = numbers["step"]
        self.num_skipped = numbers["num_skipped"]
        self.num_skipped_in_a_row = numbers.get("num_skipped_in_a_row", 0)


def new_state(
    recipe: Recipe,
    runtime: Runtime,
    world: World,
    classes: int,
    class_names: Sequence[str] | None = None,
) -> TrainState:
    """A run at step 0, the same in every process.

    The data's `class_names` decide whether the head of the recipe's weights is kept.
    """
    torch.manual_seed(recipe.seed)
    model = build_model(recipe, classes).to(world.device)
    if isinstance(model, VisionTransformer):
        model.encoder.residual_dtype = RESIDUALS[runtime.residual]
    loaded = None
    if recipe.weights is not None:
        loaded = start_from(model, recipe.weights, class_names)
    ema = new_ema(model, recipe.ema)
    if ema is not None:
        ema = parallelize_copy(ema, runtime.parallelism, world)
    parallelism = parallelize(model, runtime.parallelism, world)
    scaler = torch.amp.GradScaler(
        world.device.type, enabled=runtime.precision == "fp16"
    )
    run = TrainState(parallelism, ema, [], scaler, loaded=loaded)
    run.optimizers = build_optimizers(run.plain, recipe)
    return run


def start_from(
    model: nn.Module, weights: str, class_names: Sequence[str] | None
) -> Loaded:
    """Loads a file's weights into a model; raises an error for NaN or infinity.

    The report is for the run's log.
    """
    loaded = put_weights(model, weights, class_names=class_names)
    if loaded.non_finite:
        raise UserError(
            f"weights={weights} contain NaN or infinity in "
            f"{shorten([*loaded.non_finite])}; use another file."
        )
    return loaded


def build_model(recipe: Recipe, num_classes: int) -> nn.Module:
    """The model of a recipe, untrained."""
    return create_model(
        recipe.model,
        num_classes=num_classes,
        image_size=recipe.image_size,
        in_channels=recipe.channels,
        drop_path=recipe.drop_path,
        **recipe.model_args,
    )


def new_ema(model: nn.Module, settings: EMA) -> nn.Module | None:
    """A copy of the model to hold the running average of its weights."""
    if settings.decay == 0:
        return None
    return copy.deepcopy(model).eval().requires_grad_(False)


@torch.no_grad()
def update_ema(run: TrainState, share: float | Tensor) -> None:
    """Moves the average by a share of its way to the weights as they are now."""
    if run.ema is None:
        return
    (own, raw), (own_statistics, raw_statistics) = run.ema_pairs
    if isinstance(share, Tensor):  # which lists of tensors cannot be interpolated by
        ways = torch._foreach_sub(raw, own)
        torch._foreach_mul_(ways, share)
        torch._foreach_add_(own, ways)
    else:
        torch._foreach_lerp_(own, raw, share)
    for kept, now in zip(own_statistics, raw_statistics, strict=True):
        kept.copy_(now)
