"""Many devices: which process this is, and how a model is spread over them."""

import atexit
import gc
import inspect
import os
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeGuard, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from t2t.config import differences, few
from t2t.errors import LocalError, UserError, choose
from t2t.models.fusion import is_dtensor
from t2t.torchrun import read_environment_ranks
from t2t.training.rendezvous import rendezvous_store, report_error_once

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

Parallelism = Literal["ddp", "fsdp", "hybrid"]
PARALLELISMS = {"ddp": False, "fsdp": True, "hybrid": True}
"""Whether each process holds only a shard of the weights."""
Found = TypeVar("Found")

# Training's kernels go before a decoder's, and after those that crop the next batch.
PRIORITY = -1
# The most there can be. From JPEGs a step went at 0.65 of its speed with the usual
# eight and priorities, at 0.72 with these alone, at 0.93 with both.
NUM_QUEUES = "32"


@dataclass(frozen=True)
class World:
    """This process among all that train together."""

    rank: int
    size: int
    device: torch.device
    local_rank: int = 0
    local_size: int = 1
    """Processes on this machine."""
    control: Any = None
    """A group for words and files, which never wait for what the devices compute."""

    @property
    def is_main(self) -> bool:
        """Whether this process speaks and writes for all."""
        return self.rank == 0

    @property
    def is_distributed(self) -> bool:
        """Whether there are others."""
        return self.size > 1


@contextmanager
def init_distributed(device: str | None) -> Iterator[World]:
    """Joins the processes that torchrun started, or stands alone; leaves at the end."""
    rank, world_size, local_rank, local_size = read_environment_ranks()
    chosen = find_device(device, local_rank)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    if world_size == 1:
        with training_stream(chosen):
            yield World(rank=0, size=1, device=chosen)
        return
    with ExitStack() as leaving:
        if not dist.is_initialized():
            on_cuda = chosen.type == "cuda"
            store = rendezvous_store(rank, world_size)
            dist.init_process_group(
                "nccl" if on_cuda else "gloo",
                store=store,
                rank=rank,
                world_size=world_size,
                device_id=chosen if on_cuda else None,
            )
            # Gloo's threads live as long as anything knows its group. One that lets go
            # of a tensor while Python shuts down would abort the process.
            atexit.register(gc.collect)
            leaving.callback(dist.destroy_process_group)
            leaving.enter_context(report_error_once(store))
        leaving.enter_context(training_stream(chosen))
        yield World(
            rank=rank,
            size=world_size,
            device=chosen,
            local_rank=local_rank,
            local_size=local_size,
            control=dist.new_group(backend="gloo"),
        )


@contextmanager
def training_stream(device: torch.device) -> Iterator[None]:
    """Work for CUDA on a stream that no other library's has to wait for.

    nvJPEG's streams wait for the default one. Besides, streams of one priority share
    the device's queues: behind a step in the same queue, decoding would stand still
    until it is over. So training has a priority that nobody else's streams have.
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
        # What was computed here may be read there next.
        before.wait_stream(own)


def find_device(name: str | None, local_rank: int = 0) -> torch.device:
    """The device asked for, or the best there is: CUDA, Apple's MPS, then the CPU."""
    # CUDA reads this when it is first used.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", NUM_QUEUES)
    # Devices are counted even where the driver is too old for them.
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    there = [f"cuda:{number}" for number in range(num_gpus)]
    there += ["mps", "cpu"] if torch.backends.mps.is_available() else ["cpu"]
    if name is None:
        name = there[0].partition(":")[0]
    found = f"cuda:{local_rank}" if name == "cuda" else name
    if found not in there:
        asked = found if num_gpus else name
        raise UserError(
            f"device={asked!r} is not on this machine; there is: {', '.join(there)}."
        )
    return torch.device(found)


def parallelize(task: nn.Module, parallelism: Parallelism, world: World) -> nn.Module:
    """The task as all processes train it together: wrapped, or sharded in place."""
    shards = choose("parallelism", parallelism, PARALLELISMS)
    if not world.is_distributed:
        return task
    if shards:
        return shard(task, parallelism, world)
    ids = [world.device.index] if world.device.type == "cuda" else None
    # Most buffers never change; `broadcast_tensors` takes care of those that do.
    taken = inspect.signature(DistributedDataParallel).parameters
    renamed = "forward_sync_buffers" in taken
    buffers: dict[str, Any] = {
        "forward_sync_buffers" if renamed else "broadcast_buffers": False
    }
    return DistributedDataParallel(
        task, device_ids=ids, gradient_as_bucket_view=True, **buffers
    )


def shard(model: nn.Module, parallelism: Parallelism, world: World) -> nn.Module:
    """Shards the weights of a module over all processes, or over those of a node."""
    from torch.distributed.fsdp import fully_shard  # slow to import, rarely needed

    shape: tuple[int, ...] = (world.size,)
    names: tuple[str, ...] = ("shard",)
    if parallelism == "hybrid":
        check_nodes(world.size, world.local_size)
        shape = (world.size // world.local_size, world.local_size)
        names = ("replicate", "shard")
    mesh = init_device_mesh(world.device.type, shape, mesh_dim_names=names)
    model.to(memory_format=torch.contiguous_format)  # as shards have to be
    for block in blocks_of(getattr(model, "model", model)):  # of a task's model
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def check_nodes(num_processes: int, per_node: int) -> None:
    """Refuses machines of unequal size, over which no model can be shared out."""
    if num_processes % per_node:
        raise UserError(
            f"{num_processes} processes are not machines of {per_node}, as hybrid "
            f"needs them; give a multiple of {per_node}, or use --parallelism fsdp."
        )


def parallelize_copy(
    model: nn.Module, parallelism: Parallelism, world: World
) -> nn.Module:
    """A model that is not trained, like the average: sharded, or whole everywhere."""
    sharded = world.is_distributed and PARALLELISMS[parallelism]
    return shard(model, parallelism, world) if sharded else model


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The repeated parts of a model, which are sharded one by one."""
    lists = [list(part) for part in model.modules() if isinstance(part, nn.ModuleList)]
    return max(lists, key=num_parameters, default=[])


def num_parameters(parts: list[nn.Module]) -> int:
    """How many numbers the parameters of some modules hold."""
    return sum(p.numel() for part in parts for p in part.parameters())


def is_sharded(model: nn.Module) -> TypeGuard["FSDPModule"]:
    """Whether a model went through `shard`, which loads what is looked up here."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(model, fsdp.FSDPModule)


def sync_gradients(task: nn.Module, enabled: bool) -> None:
    """Whether backward passes from here on add up gradients over all processes."""
    if isinstance(task, DistributedDataParallel):
        task.require_backward_grad_sync = enabled
        return
    if is_sharded(task):
        task.set_requires_gradient_sync(enabled)


@contextmanager
def unsharded(module: nn.Module) -> Iterator[None]:
    """Gathers sharded weights, so that any method can be called, not only forward.

    Blocks gather their own weights when they are called.
    """
    if is_sharded(module):
        module.unshard()
    try:
        yield
    finally:
        if is_sharded(module):
            module.reshard()


def batch_norm_buffers(model: nn.Module) -> list[Tensor]:
    """What batch norms have counted: the only weights that a forward pass changes."""
    norms = [part for part in model.modules() if isinstance(part, _BatchNorm)]
    return [buffer for norm in norms for buffer in norm.buffers()]


def broadcast_tensors(statistics: list[Tensor], world: World) -> None:
    """Gives every process the leading one's batch statistics."""
    if world.is_distributed:
        for buffer in statistics:
            dist.broadcast(buffer, src=0)


def full_state_dict(model: nn.Module, world: World) -> dict[str, Tensor]:
    """All weights whole in main memory, in the leading process; empty in the others."""
    state: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        whole = tensor.full_tensor() if is_dtensor(tensor) else tensor
        if world.is_main:
            state[name] = whole.detach().cpu()
    return state


def all_reduce_sum(numbers: Tensor, world: World) -> Tensor:
    """The sum of a tensor over all processes."""
    if world.is_distributed:
        dist.all_reduce(numbers)
    return numbers


def all_gather_rows(rows: Tensor, world: World) -> Tensor:
    """The rows of all processes, one after another; each has as many."""
    if not world.is_distributed:
        return rows
    gathered = rows.new_empty(world.size, *rows.shape)
    dist.all_gather([*gathered], rows)
    return gathered.flatten(0, 1)


def all_gather_union(things: tuple[Found, ...], world: World) -> tuple[Found, ...]:
    """What any process has, each once."""
    if not world.is_distributed:
        return things
    gathered: list[tuple[Found, ...]] = [()] * world.size
    dist.all_gather_object(gathered, things)
    return tuple(dict.fromkeys(thing for some in gathered for thing in some))


def all_reduce_any(flags: tuple[bool, ...], world: World) -> tuple[bool, ...]:
    """For each flag, whether it is up in any process."""
    if not world.is_distributed:
        return flags
    told = torch.tensor(flags, dtype=torch.int32, device=world.device)
    return tuple(count > 0 for count in all_reduce_sum(told, world).tolist())


def broadcast_from_main(world: World, find: Callable[[], Found]) -> Found:
    """What the leading process finds, told to all; a mistake is raised in all."""
    if not world.is_distributed:
        return find()
    told: list[Any] = [None, None]
    if world.is_main:
        try:
            told[0] = find()
        except UserError as error:
            told[1] = str(error)
    dist.broadcast_object_list(told, src=0, group=world.control)
    found, mistake = told
    if mistake is not None:
        raise UserError(mistake)
    return found


def check_same_on_all(world: World, plans: dict[str, Any]) -> None:
    """Refuses processes that are to do something else than the leading one."""
    if changed := differences(broadcast_from_main(world, lambda: plans), plans):
        raise LocalError(
            f"Process {world.rank} on {platform.node()} is not to do what the first "
            f"one is ({few(changed)}); give all machines the same command, program and "
            "data."
        )


def local_main_first(world: World, find: Callable[[], Found]) -> Found:
    """What every process finds, after one on its machine has downloaded it."""
    if world.local_rank == 0:
        found = find()
        barrier(world)
        return found
    barrier(world)
    return find()


def barrier(world: World) -> None:
    """Returns when every process has come here."""
    if world.is_distributed:
        dist.barrier(group=world.control)
