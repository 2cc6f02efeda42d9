"""Where a model's parts are plain enough for the fused operations, and their weights.

The fused operations read weights, not modules: whoever hooks, shards or replaces a
module gets the plain path, which calls every module.
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor, nn

from t2t.ops.availability import HAS_TRITON
from t2t.ops.block_stack import BlockWeights
from t2t.ops.performer_step import StepWeights, compute_dtype
from t2t.ops.softmax_step import SoftmaxWeights

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

# With fewer dropped samples in a batch, whole numbers follow a drop rate too coarsely.
FEWEST_DROPPED = 2


def is_fused(x: Tensor) -> bool:
    """Whether what follows these tokens is computed in half precision by Triton."""
    on_triton = HAS_TRITON and x.is_cuda
    return on_triton and compute_dtype(x) in (torch.bfloat16, torch.float16)


def are_plain(modules: Sequence[nn.Module]) -> bool:
    """Whether these are torch's own linear layers and norms, neither hooked nor cut."""
    return all(
        type(module) in (nn.Linear, nn.LayerNorm)
        and not is_cut(module.weight)
        and not is_hooked(module)
        for module in modules
    )


def is_cut(weight: object) -> TypeGuard["DTensor"]:
    """Whether each process holds a shard of a weight."""
    # Importing DTensor takes a while, and whoever made one has imported it.
    tensor = sys.modules.get("torch.distributed.tensor")
    return tensor is not None and isinstance(weight, tensor.DTensor)


def is_hooked(module: nn.Module) -> bool:
    """Whether somebody listens to a module; compiled code is never asked."""
    if torch.compiler.is_compiling():
        return False
    return bool(module._forward_hooks or module._forward_pre_hooks)


def block_weights(block: Any) -> BlockWeights | None:
    """The weights of a block of plain attention and a plain MLP; None for others."""
    mixer, mlp = block.mixer, block.mlp
    if mixer.shorten is not None or type(mixer.gate) is not nn.Identity:
        return None
    if type(mlp.expand) is not nn.Sequential:
        return None
    parts = [block.norm1, mixer.qkv, mixer.proj, block.norm2, mlp.expand[0], mlp.reduce]
    around = [block, mixer, mlp, mlp.expand, mlp.expand[1], block.drop_path]
    if not are_plain(parts) or any(is_hooked(module) for module in around):
        return None
    return BlockWeights(*(each for part in parts for each in (part.weight, part.bias)))


def step_weights(step: Any) -> StepWeights | None:
    """The weights of a step with a Performer; None where parts were changed."""
    parts = plain_step(step)
    if parts is None:
        return None
    first, qkv, *rest = ((part.weight, part.bias) for part in parts)
    return StepWeights(
        *first, *qkv, step.features, *(each for pair in rest for each in pair)
    )


def softmax_weights(step: Any) -> SoftmaxWeights | None:
    """The weights of a step with softmax attention; None where parts were changed."""
    parts = plain_step(step)
    if parts is None or step.qkv.bias is not None:
        return None
    first, qkv, *rest = ((part.weight, part.bias) for part in parts)
    return SoftmaxWeights(*first, qkv[0], *(each for pair in rest for each in pair))


def plain_step(step: Any) -> list[Any] | None:
    """The layers of a tokens-to-token step, in order; None where they were changed."""
    mlp = step.mlp
    parts = [step.norm1, step.qkv, step.proj, step.norm2, mlp.expand[0], mlp.reduce]
    around = [step, mlp, mlp.expand, mlp.expand[1], step.dropout]
    if not are_plain(parts) or any(is_hooked(module) for module in around):
        return None
    return parts
