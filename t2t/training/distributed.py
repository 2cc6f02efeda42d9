"""Distributed training: processes, collectives, and how a model is parallelized."""

import atexit
import gc
import inspect
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from t2t.config import differences, few
from t2t.errors import LocalError, UserError, choose
from t2t.models.shards import is_dtensor, is_sharded
from t2t.torchrun import read_environment_ranks
from t2t.training.cuda_graph import free_graphs
from t2t.training.rendezvous import rendezvous_store, report_error_once
from t2t.training.sharding import is_kept, shard

Parallelism = Literal["ddp", "fsdp", "hybrid"]
PARALLELISMS = {"ddp": False, "fsdp": True, "hybrid": True}
"""Whether each process holds only a shard of the weights."""
Found = TypeVar("Found")

# CUDA priority: above nvJPEG's streams, below the stream that crops the next batch.
PRIORITY = -1
# The maximum. Steps from JPEGs reached 0.65 of full speed with the default of eight
# queues and priorities, 0.72 with 32 queues and no priorities, 0.93 with both.
NUM_QUEUES = "32"
NEVER = 2**31 - 1


@dataclass(frozen=True)
class World:
    """This process, and the number of processes that train together."""

    rank: int
    size: int
    device: torch.device
    local_rank: int = 0
    local_size: int = 1
    """Processes on this node."""
    control: Any = None
    """A gloo group for objects and files, which does not wait for the GPUs."""
    store: Any = None
    """What the processes of this run share; None if another program made the group."""

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which prints and writes files."""
        return self.rank == 0

    @property
    def is_distributed(self) -> bool:
        """Whether there is a process group: of several processes, or of one."""
        return self.size > 1 or self.control is not None


@contextmanager
def init_distributed(
    device: str | None, *, group_of_one: bool = False, hang_minutes: float = 0.0
) -> Iterator[World]:
    """Sets up the process group under torchrun; destroys it at the end.

    With `group_of_one`, one process without torchrun gets a group of its own, and does
    all that one of several does. Collectives fail later than after `hang_minutes`.
    """
    rank, world_size, local_rank, local_size = read_environment_ranks()
    chosen = find_device(device, local_rank)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    if world_size == 1 and not group_of_one:
        with training_stream(chosen):
            yield World(rank=0, size=1, device=chosen)
        return
    store: Any = None
    timeout = timedelta(minutes=max(30.0, hang_minutes + 10))
    with ExitStack() as exits:
        if not dist.is_initialized():
            is_alone = world_size == 1
            store = HashStore() if is_alone else rendezvous_store(rank, world_size)
            dist.init_process_group(
                store=store,
                rank=rank,
                world_size=world_size,
                timeout=timeout,
                **backend_for(chosen),
            )
            # Gloo's threads live as long as their group is referenced. A thread that
            # frees a tensor while Python shuts down would abort the process.
            atexit.register(gc.collect)
            exits.callback(dist.destroy_process_group)
            exits.callback(free_graphs)
            exits.enter_context(report_error_once(store))
        exits.enter_context(training_stream(chosen))
        yield World(
            rank=rank,
            size=world_size,
            device=chosen,
            local_rank=local_rank,
            local_size=local_size,
            # Not by default: a group of its own would have torch's 30 minutes.
            control=dist.new_group(backend="gloo", timeout=timeout),
            store=store,
        )


def backend_for(device: torch.device) -> dict[str, Any]:
    """The options of a process group for a device."""
    if device.type != "cuda":
        return {"backend": "gloo"}
    # Else kernels of the backward pass would go before those that reduce gradients.
    # `pg_options` would do the same, but torch warns of their own timeout.
    os.environ.setdefault("TORCH_NCCL_HIGH_PRIORITY", "1")
    return {"backend": "nccl", "device_id": device}


@contextmanager
def training_stream(device: torch.device) -> Iterator[None]:
    """Runs CUDA work on its own stream, with its own priority.

    nvJPEG's streams wait for the default stream. Streams of one priority share hardware
    queues: decoding in the same queue as a step would wait for the end of the step.
    """
    if device.type != "cuda":
        yield
        return
    before = torch.cuda.current_stream(device)
    own = torch.cuda.Stream(device, PRIORITY)
    own.wait_stream(before)
    try:
        with torch.cuda.stream(own):
            yield
    finally:
        # Work on the previous stream may read the results.
        before.wait_stream(own)


def find_device(name: str | None, local_rank: int = 0) -> torch.device:
    """The named device, or the best available: CUDA, Apple's MPS, then the CPU."""
    set_cuda_variables()
    # `device_count` also counts devices that the driver is too old for.
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    available = [f"cuda:{number}" for number in range(num_gpus)]
    available += ["mps", "cpu"] if torch.backends.mps.is_available() else ["cpu"]
    if name is None:
        name = available[0].partition(":")[0]
    found = f"cuda:{local_rank}" if name == "cuda" else name
    if found not in available:
        wanted = found if num_gpus else name
        raise UserError(
            f"device={wanted!r} is not available; there is: {', '.join(available)}."
        )
    return torch.device(found)


def set_cuda_variables() -> None:
    """Sets what CUDA and PyTorch read once, at their first use of a GPU."""
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", NUM_QUEUES)
    # torch requires this for deterministic cuBLAS; on an H200 it is the default size.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def parallelize(task: nn.Module, parallelism: Parallelism, world: World) -> nn.Module:
    """The task wrapped in DDP, or sharded in place."""
    shards = choose("parallelism", parallelism, PARALLELISMS)
    if not world.is_distributed:
        return task
    if shards:
        return shard(task, parallelism, world)
    ids = [world.device.index] if world.device.type == "cuda" else None
    # Buffers are not synchronized at each step: most never change, and the loop
    # broadcasts those of batch norms before they are used.
    known = inspect.signature(DistributedDataParallel).parameters
    renamed = "forward_sync_buffers" in known
    buffers: dict[str, Any] = {
        "forward_sync_buffers" if renamed else "broadcast_buffers": False
    }
    trained = DistributedDataParallel(
        task, device_ids=ids, gradient_as_bucket_view=True, **buffers
    )
    # Else every hundredth step would wait for its own times, which nothing reads.
    trained._set_ddp_runtime_logging_sample_rate(NEVER)
    return trained


def parallelize_copy(
    model: nn.Module, parallelism: Parallelism, world: World
) -> nn.Module:
    """A model that is not trained, such as the EMA: sharded, or unchanged."""
    sharded = world.is_distributed and PARALLELISMS[parallelism]
    return shard(model, parallelism, world) if sharded else model


def sync_gradients(task: nn.Module, enabled: bool) -> None:
    """Sets whether backward passes sum gradients over all processes."""
    if isinstance(task, DistributedDataParallel):
        task.require_backward_grad_sync = enabled
        return
    # A small model stays gathered until its last micro-batch.
    stays = is_kept(task) and not enabled
    if is_sharded(task):
        task.set_requires_gradient_sync(enabled)
        task.set_reshard_after_backward(not stays)


def batch_norm_buffers(model: nn.Module, only_training: bool = False) -> list[Tensor]:
    """The running statistics of batch norms, the only buffers that training changes.

    With `only_training`, leaves out norms in eval mode, which do not change.
    """
    norms = [part for part in model.modules() if isinstance(part, _BatchNorm)]
    return [
        buffer
        for norm in norms
        if norm.training or not only_training
        for buffer in norm.buffers()
    ]


def broadcast_tensors(tensors: list[Tensor], world: World) -> None:
    """Broadcasts tensors of the main process to all."""
    if world.is_distributed:
        for tensor in tensors:
            dist.broadcast(tensor, src=0)


def full_state_dict(weights: dict[str, Tensor], world: World) -> dict[str, Tensor]:
    """Unsharded weights on the CPU, in the main process; empty in the others."""
    state: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        full = tensor.full_tensor() if is_dtensor(tensor) else tensor
        if world.is_main:
            state[name] = full.detach().cpu()
    return state


def all_reduce_sum(numbers: Tensor, world: World) -> Tensor:
    """The sum of a tensor over all processes."""
    if world.is_distributed:
        dist.all_reduce(numbers)
    return numbers


def all_gather_rows(rows: Tensor, world: World) -> Tensor:
    """The rows of all processes in the order of ranks; each has the same number."""
    if not world.is_distributed:
        return rows
    gathered = rows.new_empty(world.size, *rows.shape)
    dist.all_gather([*gathered], rows)
    return gathered.flatten(0, 1)


def all_gather_union(items: tuple[Found, ...], world: World) -> tuple[Found, ...]:
    """The items of all processes, each once."""
    if not world.is_distributed:
        return items
    gathered: list[tuple[Found, ...]] = [()] * world.size
    dist.all_gather_object(gathered, items)
    return tuple(dict.fromkeys(item for items in gathered for item in items))


def all_reduce_any(flags: tuple[bool, ...], world: World) -> tuple[bool, ...]:
    """For each flag, whether it is set in any process."""
    if not world.is_distributed:
        return flags
    counts = torch.tensor(flags, dtype=torch.int32, device=world.device)
    return tuple(count > 0 for count in all_reduce_sum(counts, world).tolist())


def broadcast_from_main(world: World, find: Callable[[], Found]) -> Found:
    """Calls a function in the main process; returns its value, or raises, in all."""
    if not world.is_distributed:
        return find()
    shared: list[Any] = [None, None]
    if world.is_main:
        try:
            shared[0] = find()
        except UserError as error:
            shared[1] = str(error)
    dist.broadcast_object_list(shared, src=0, group=world.control)
    found, message = shared
    if message is not None:
        raise UserError(message)
    return found


def check_same_on_all(world: World, settings: dict[str, Any]) -> None:
    """Raises an error in processes whose settings are not the main process's."""
    if changed := differences(broadcast_from_main(world, lambda: settings), settings):
        raise LocalError(
            f"Process {world.rank} on {platform.node()} differs from process 0 "
            f"({few(changed)}); give all nodes the same command, version and data."
        )


def barrier(world: World) -> None:
    """Waits for all processes."""
    if world.is_distributed:
        dist.barrier(group=world.control)
