"""Modules and weights that FSDP shards, without importing it: that is slow.

If there are shards, FSDP has been imported. Another thread may be about to import it,
as the one that writes checkpoints.
"""

import math
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeGuard

from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor


def is_dtensor(weight: object) -> TypeGuard["DTensor"]:
    """Whether each process holds a shard of a weight."""
    return isinstance(weight, dtensor_class())


def dtensor_class() -> Any:
    """DTensor's class; before it is imported, one that nothing is of."""
    return getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", ())


def is_sharded(module: nn.Module) -> TypeGuard["FSDPModule"]:
    """Whether FSDP gathers the weights of a module when it is called."""
    kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", ())
    return isinstance(module, kind)


def class_of(module: nn.Module) -> type:
    """The class of a module; if it is sharded, the one that FSDP derived from."""
    own = type(module)
    return own.__bases__[-1] if is_sharded(module) else own


def local_tensors(tensors: Iterable[Tensor]) -> list[Tensor]:
    """This process's shards, to change where gradients are off; others as they are.

    An operation on a sharded tensor takes the host ten times as long.
    """
    kind = dtensor_class()
    return [each.to_local() if isinstance(each, kind) else each for each in tensors]


def sharded_as(like: Tensor, local: Tensor) -> Tensor:
    """This process's part of a tensor that is sharded as another; a number as it is."""
    if not is_dtensor(like) or local.ndim != like.ndim:
        return local
    return type(like).from_local(
        local,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


def local_part(like: Tensor, whole: Tensor) -> Tensor:
    """This process's part of a whole tensor, as another is sharded."""
    if not is_dtensor(like):
        return whole
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = like.device_mesh, like.placements
    return distribute_tensor(whole, mesh, placements, src_data_rank=None).to_local()


def num_copies(tensor: Tensor) -> int:
    """How many processes hold the same part of a tensor."""
    if not is_dtensor(tensor):
        return 1
    sizes = zip(tensor.device_mesh.shape, tensor.placements, strict=True)
    return math.prod(size for size, place in sizes if place.is_replicate())
