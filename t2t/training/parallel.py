"""Many devices: which process this is, and how a model is spread over them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from t2t.errors import UserError

Spread = Literal["ddp", "fsdp", "hybrid"]


@dataclass(frozen=True)
class Processes:
    """This process among all that train together."""

    rank: int
    world_size: int
    device: torch.device

    @property
    def leads(self) -> bool:
        """Whether this process speaks and writes for all."""
        return self.rank == 0

    @property
    def many(self) -> bool:
        """Whether there are others."""
        return self.world_size > 1


@contextmanager
def processes(device: str | None) -> Iterator[Processes]:
    """Joins the processes that torchrun started, or stands alone; leaves at the end."""
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    rank = int(os.environ.get("RANK", 0))
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    chosen = find_device(device, local_rank)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    if world_size == 1:
        yield Processes(rank=0, world_size=1, device=chosen)
        return
    joined_here = not dist.is_initialized()
    if joined_here:
        dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    try:
        yield Processes(rank=rank, world_size=world_size, device=chosen)
    finally:
        if joined_here:
            dist.destroy_process_group()


def find_device(name: str | None, local_rank: int = 0) -> torch.device:
    """The device asked for, or the best there is: CUDA, Apple's MPS, then the CPU."""
    available = {"cpu": True, "cuda": torch.cuda.is_available()}
    available["mps"] = torch.backends.mps.is_available()
    if name is None:
        name = next(kind for kind in ("cuda", "mps", "cpu") if available[kind])
    kind = name.partition(":")[0]
    if not available.get(kind, False):
        there = ", ".join(kind for kind, is_there in available.items() if is_there)
        raise UserError(f"device={name!r} is not on this machine; there is: {there}.")
    return torch.device(f"cuda:{local_rank}") if name == "cuda" else torch.device(name)


def spread_model(model: nn.Module, spread: Spread, team: Processes) -> nn.Module:
    """The model as all processes train it together."""
    if not team.many:
        return model
    if spread == "ddp":
        ids = [team.device.index] if team.device.type == "cuda" else None
        return DistributedDataParallel(
            model, device_ids=ids, gradient_as_bucket_view=True
        )
    shape: tuple[int, ...] = (team.world_size,)
    if spread == "hybrid":
        local = int(os.environ.get("LOCAL_WORLD_SIZE", team.world_size))
        shape = (team.world_size // local, local)
    names = ("replicate", "shard")[-len(shape) :]
    mesh = init_device_mesh(team.device.type, shape, mesh_dim_names=names)
    for block in blocks_of(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The repeated parts of a model, which are sharded one by one."""
    lists = [part for part in model.modules() if isinstance(part, nn.ModuleList)]
    return list(max(lists, key=len)) if lists else []


def sum_over_all(numbers: Tensor, team: Processes) -> Tensor:
    """The sum of a tensor over all processes."""
    if team.many:
        dist.all_reduce(numbers)
    return numbers


def wait_for_all(team: Processes) -> None:
    """Returns when every process has come here."""
    if team.many:
        dist.barrier()
