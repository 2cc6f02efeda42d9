"""How FSDP shards a model: which parts gather their weights together, and when."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from t2t.errors import UserError
from t2t.models.shards import is_sharded
from t2t.models.vit import VisionTransformer

if TYPE_CHECKING:
    from t2t.training.distributed import Parallelism, World

KEPT_BYTES = 2**29
"""A model of at most so many bytes is gathered once a step."""


def shard(model: nn.Module, parallelism: "Parallelism", world: "World") -> nn.Module:
    """Shards the weights of a module over all processes, or over those of a node.

    A small model's encoder is gathered once a step, while the tokenizer runs, and kept
    for the backward pass: it runs as one fused stack, and its gradients are summed
    during the tokenizer's backward pass. A large one gathers and frees each block.
    """
    # Slow to import, rarely needed.
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    shape: tuple[int, ...] = (world.size,)
    names: tuple[str, ...] = ("shard",)
    if parallelism == "hybrid":
        check_nodes(world.size, world.local_size)
        shape = (world.size // world.local_size, world.local_size)
        names = ("replicate", "shard")
    mesh = init_device_mesh(world.device.type, shape, mesh_dim_names=names)
    model.to(memory_format=torch.contiguous_format)  # required for shards
    inner = getattr(model, "model", model)  # of a task
    if is_kept(model) and isinstance(inner, VisionTransformer):
        encoder = fully_shard(inner.encoder, mesh=mesh, reshard_after_forward=False)
        register_fsdp_forward_method(inner.encoder, "step")  # for single layers
        fully_shard(model, mesh=mesh).set_modules_to_forward_prefetch([encoder])
        return model
    if not is_kept(model):
        for block in blocks_of(inner):
            fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def is_kept(model: nn.Module) -> bool:
    """Whether the weights of a sharded model stay gathered until a step ends."""
    return num_bytes(model) <= KEPT_BYTES


def check_nodes(num_processes: int, per_node: int) -> None:
    """Raises an error if nodes have different numbers of processes."""
    if num_processes % per_node:
        raise UserError(
            f"--parallelism hybrid needs equal nodes, and {num_processes} processes "
            f"are not a multiple of {per_node}; change that, or use --parallelism fsdp."
        )


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The repeated blocks of a model."""
    lists = [part for part in model.modules() if isinstance(part, nn.ModuleList)]
    return [*max(lists, key=num_bytes, default=())]


def num_bytes(model: nn.Module) -> int:
    """The size of the weights of a module."""
    return sum(each.numel() * each.element_size() for each in model.parameters())


@contextmanager
def unsharded(module: nn.Module) -> Iterator[None]:
    """Gathers sharded weights for calls of methods other than forward.

    Encoders and blocks gather their own weights when they are called. All are freed at
    the end: when they are used again, they may have changed.
    """
    if is_sharded(module):
        module.unshard()
    try:
        yield
    finally:
        for part in filter(is_sharded, module.modules()):
            part.reshard()
