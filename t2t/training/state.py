"""The train state: all that changes while training."""

from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from t2t.models.shards import is_dtensor
from t2t.models.weights import LoadReport
from t2t.tasks import Task
from t2t.tasks.base import move_towards
from t2t.training.best import PREFIX, BestEvaluation
from t2t.training.distributed import batch_norm_buffers

# Settings of parameter groups that depend on the device.
DEVICE_SETTINGS = ("foreach", "fused", "capturable")


class Snapshot(NamedTuple):
    """The content of a checkpoint: tensors by name, and values that JSON can hold."""

    tensors: dict[str, Tensor]
    numbers: dict[str, Any]


@dataclass
class TrainState:
    """Task with its model, EMA, optimizers and counters: what a checkpoint holds."""

    trained: nn.Module
    """The task as it is trained: plain, sharded, or wrapped in DDP."""
    ema: nn.Module | None
    """The moving average of the model."""
    optimizers: list[Optimizer]
    scaler: torch.amp.GradScaler
    step: int = 0
    num_skipped: int = 0
    """Steps skipped because their gradient was not finite."""
    num_skipped_in_a_row: int = 0
    """Skipped steps since the last step that was applied."""
    data: dict[str, Any] = field(default_factory=dict)
    """The training data: `classes`, `num_images` and `fingerprint`."""
    loaded: LoadReport | None = None
    """The report on the initial weights, if there are any."""
    num_frozen: int = 0
    """Parameters of the model that would be trained without `freeze`."""
    best: BestEvaluation = field(default_factory=BestEvaluation)
    """The best evaluation so far."""

    @property
    def task(self) -> Task:
        """The task without its DDP wrapper."""
        inner = getattr(self.trained, "module", self.trained)
        assert isinstance(inner, Task)
        return inner

    @property
    def model(self) -> nn.Module:
        """The raw model."""
        return self.task.model

    @property
    def final_model(self) -> nn.Module:
        """The EMA, or the raw model if there is no EMA."""
        return self.model if self.ema is None else self.ema

    @property
    def num_parameters(self) -> int:
        """The number of the model's parameters, without fixed tables."""
        return self.num_trained + self.num_frozen

    @property
    def num_trained(self) -> int:
        """The number of the model's parameters that are trained."""
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)

    @cached_property
    def ema_pairs(self) -> list[tuple[list[Tensor], list[Tensor]]]:
        """Parameters, and batch norm buffers, of the EMA and of the model."""
        assert self.ema is not None
        own, raw = self.ema, self.model
        return [
            (list(own.parameters()), list(raw.parameters())),
            (batch_norm_buffers(own), batch_norm_buffers(raw)),
        ]

    def snapshot(self) -> Snapshot:
        """The current values; tensors are not copied."""
        tensors, numbers = {**self.weights(), **self.best.tensors()}, {}
        for key, value in {**self.optimizer_state(), **self.group_state()}.items():
            if isinstance(value, Tensor):
                tensors[key] = value
            else:
                numbers[key] = value
        return Snapshot(
            tensors,
            {
                "step": self.step,
                "num_skipped": self.num_skipped,
                "num_skipped_in_a_row": self.num_skipped_in_a_row,
                "best": self.best.numbers(),
                "data": self.data,
                "files": {n: asdict(file) for n, file in self.task.files.items()},
                "scaler": self.scaler.state_dict(),
                "optimizers": numbers,
            },
        )

    def weights(self) -> dict[str, Tensor]:
        """The tensors of the model, of the EMA and of the task that are saved."""
        saved = self.task.saved_modules()
        own = {f"task.{name}": each for name, each in saved.items()}
        parts = {"model": self.model, "ema": self.ema, **own}
        tensors = {
            f"{part}/{name}": tensor
            for part, module in parts.items()
            if module is not None
            for name, tensor in module.state_dict().items()
        }
        for name, tensor in self.task.state_dict().items():
            if "." not in name:  # a buffer of the task itself
                tensors[f"task/{name}"] = tensor
        return tensors

    def parameter_names(self) -> dict[Tensor, str]:
        """The names of the task's parameters, those of the model included."""
        return {parameter: name for name, parameter in self.task.named_parameters()}

    def optimizer_state(self) -> dict[str, Any]:
        """The optimizers' state by parameter name; empty before the first step."""
        names = self.parameter_names()
        return {
            f"optimizer/{number}/{names[parameter]}/{key}": value
            for number, optimizer in enumerate(self.optimizers)
            for parameter, memory in optimizer.state.items()
            for key, value in memory.items()
        }

    def group_state(self) -> dict[str, Any]:
        """The settings of the parameter groups; some optimizers count steps there."""
        return {
            f"group/{number}/{index}/{key}": value
            for number, optimizer in enumerate(self.optimizers)
            for index, group in enumerate(optimizer.param_groups)
            for key, value in group.items()
            if key != "params" and not isinstance(value, torch.dtype)
        }

    def empty_like(self, key: str, size: torch.Size, dtype: torch.dtype) -> Tensor:
        """An empty tensor to load into, sharded as the parameter that it belongs to."""
        if key.startswith(PREFIX):
            own = self.final_model.state_dict()[key.removeprefix(PREFIX)]
            if is_dtensor(own):
                return torch.empty_like(own, requires_grad=False)
        if key.startswith("optimizer/"):
            parameter = self.task.get_parameter(key.split("/")[2])
            if parameter.shape == size:
                return torch.empty_like(parameter, dtype=dtype, requires_grad=False)
        return torch.empty(size, dtype=dtype)

    def restore(self, snapshot: Snapshot) -> None:
        """Restores all but the weights, which are loaded in place before."""
        numbers = snapshot.numbers
        values = {**snapshot.tensors, **numbers["optimizers"]}
        for number, optimizer in enumerate(self.optimizers):
            self.restore_optimizer(optimizer, number, values)
        if numbers["scaler"]:  # empty unless the run was in fp16
            self.scaler.load_state_dict(numbers["scaler"])
        if "best" in numbers:  # not in those of an earlier version
            self.best.restore(snapshot.tensors, numbers["best"])
        self.step = numbers["step"]
        self.num_skipped = numbers["num_skipped"]
        self.num_skipped_in_a_row = numbers.get("num_skipped_in_a_row", 0)

    def restore_optimizer(
        self, optimizer: Optimizer, number: int, values: dict[str, Any]
    ) -> None:
        """Restores an optimizer from the values of all optimizers."""
        states: dict[str, dict[str, Any]] = {}
        groups: dict[str, dict[str, Any]] = {}
        for key, value in values.items():
            part, _, path = key.partition(f"/{number}/")
            owner, _, name = path.rpartition("/")
            if part == "optimizer":
                states.setdefault(owner, {})[name] = value
            elif part == "group":
                groups.setdefault(owner, {})[name] = value
        names = self.parameter_names()
        packed = optimizer.state_dict()
        for index, group in enumerate(packed["param_groups"]):
            own = optimizer.param_groups[index]
            for name, value in groups[str(index)].items():
                if name not in DEVICE_SETTINGS:
                    is_tuple = isinstance(value, list) and isinstance(own[name], tuple)
                    group[name] = tuple(value) if is_tuple else value
            for key, parameter in zip(group["params"], own["params"], strict=True):
                if names[parameter] in states:
                    packed["state"][key] = states[names[parameter]]
        optimizer.load_state_dict(packed)


@torch.no_grad()
def update_ema(state: TrainState, share: float | Tensor) -> None:
    """Moves the EMA towards the model by a share of the difference."""
    if state.ema is None:
        return
    (own, raw), (own_buffers, raw_buffers) = state.ema_pairs
    move_towards(own, raw, share)
    for buffer, current in zip(own_buffers, raw_buffers, strict=True):
        buffer.copy_(current)
