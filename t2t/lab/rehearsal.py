"""One training step as one of many processes, with a fake process group.

The fake group answers every collective at once, so one process can take the step it
would take among a thousand. The numbers it computes are meaningless; its memory and
the bytes it would send are real.
"""

import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from t2t.data.sampler import TrainingSampler
from t2t.errors import UserError
from t2t.training.checkpoint_writer import copy_to_cpu
from t2t.training.distributed import Parallelism, World
from t2t.training.forecast.random_batch import random_batch
from t2t.training.initial_state import new_state
from t2t.training.recipe import Recipe
from t2t.training.runtime import Runtime, resolve_runtime
from t2t.training.state import TrainState
from t2t.training.step import Stepper


@dataclass(frozen=True)
class Rehearsal:
    """Memory and traffic of one process in one step."""

    num_processes: int
    parallelism: Parallelism
    images: int
    """Images of this process in a step."""
    state_bytes: int
    """Weights, EMA and optimizer state of this process."""
    sent: dict[str, int]
    """Bytes that this process sends with ring algorithms, by collective."""
    seconds: float
    """Time to build the model and take the step on this machine."""
    copied_bytes: int
    """What this process copies for a checkpoint before it goes on."""
    copy_seconds: float
    """Time of the copy on this machine."""

    @property
    def sent_bytes(self) -> int:
        return sum(self.sent.values())


def rehearse(
    recipe: Recipe,
    num_processes: int,
    *,
    num_classes: int = 1000,
    parallelism: Parallelism = "ddp",
    per_node: int = 8,
) -> Rehearsal:
    """Takes one training step of a recipe as rank 0 of many processes."""
    if num_processes < 2:
        raise UserError("A rehearsal needs 2 GPUs or more.")
    started = time.perf_counter()
    cpu = torch.device("cpu")
    with fake_world(num_processes):
        world = World(0, num_processes, cpu, 0, per_node)
        runtime = resolve_runtime(
            Runtime(device="cpu", compile="off", parallelism=parallelism), world
        )
        state = new_state(recipe, runtime, world, num_classes)
        stepper = Stepper(recipe, runtime, world, state)
        share = TrainingSampler(
            num_images=recipe.batch_size,
            batch_size=recipe.batch_size,
            world_size=num_processes,
        ).batch_indices(0)
        batch = random_batch(recipe, len(share.indices), state.task)
        traffic = TrafficCounter()
        if isinstance(state.trained, DistributedDataParallel):
            state.trained.register_comm_hook(None, traffic.reduce_bucket)
            with warnings.catch_warnings():
                # With one image, the class token's gradient is a strided view.
                warnings.filterwarnings("ignore", "Grad strides do not match")
                stepper.train_step(batch)
        else:
            with traffic:
                stepper.train_step(batch)
        seconds = time.perf_counter() - started
        copied_bytes, copy_seconds = time_copy(state)
        return Rehearsal(
            num_processes=num_processes,
            parallelism=parallelism,
            images=len(batch.labels),
            state_bytes=state_bytes(state),
            sent=traffic.by_kind,
            seconds=seconds,
            copied_bytes=copied_bytes,
            copy_seconds=copy_seconds,
        )


def time_copy(state: TrainState) -> tuple[int, float]:
    """Bytes and seconds of the copy that a checkpoint is written from."""
    started = time.perf_counter()
    copied = copy_to_cpu(state.snapshot().tensors)
    seconds = time.perf_counter() - started
    return sum(local_bytes(each) for each in copied.values()), seconds


@contextmanager
def fake_world(world_size: int) -> Iterator[None]:
    """A process group without its other members."""
    # Registers the backend "fake".
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise UserError("A rehearsal must run outside of torchrun.")
    dist.init_process_group("fake", rank=0, world_size=world_size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


class TrafficCounter(TorchDispatchMode):
    """Counts the bytes that a process sends in ring collectives."""

    def __init__(self) -> None:
        super().__init__()
        self.by_kind: dict[str, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func.namespace == "c10d":
            if "allgather_base" in func.name():
                self.add("all-gather", num_bytes(args[0]) - num_bytes(args[1]))
            elif "reduce_scatter_base" in func.name():
                self.add("reduce-scatter", num_bytes(args[1]) - num_bytes(args[0]))
            elif "allreduce" in func.name():
                others = 1 - 1 / dist.ProcessGroup.unbox(args[1]).size()
                self.add("all-reduce", 2 * others * num_bytes(args[0]))
        return func(*args, **(kwargs or {}))

    def reduce_bucket(
        self, _: object, bucket: dist.GradBucket
    ) -> torch.futures.Future[Tensor]:
        """Counts a bucket of DistributedDataParallel and returns it unchanged."""
        others = 1 - 1 / dist.get_world_size()
        self.add("all-reduce", 2 * others * num_bytes(bucket.buffer()))
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    def add(self, kind: str, count: float) -> None:
        """Adds bytes to a kind of collective."""
        self.by_kind[kind] = self.by_kind.get(kind, 0) + round(count)


def num_bytes(tensors: Tensor | Sequence[Tensor]) -> int:
    """The size of one or several tensors."""
    if isinstance(tensors, Tensor):
        return tensors.numel() * tensors.element_size()
    return sum(num_bytes(tensor) for tensor in tensors)


def state_bytes(state: TrainState) -> int:
    """The bytes of a run's state in this process."""
    kept_out = [state.task.own_modules()[name] for name in state.task.files]
    tensors = [
        *state.snapshot().tensors.values(),
        *(each for module in kept_out for each in module.state_dict().values()),
    ]
    return sum(map(local_bytes, tensors))


def local_bytes(tensor: Tensor) -> int:
    """The size of a tensor, or of this process's shard of it."""
    return num_bytes(tensor.to_local() if isinstance(tensor, DTensor) else tensor)
