"""Which modules the fused operations can replace, and the weights they read.

The fused operations read weights and call no modules. Around a module that is hooked or
replaced, or whose shards are not gathered, the plain path calls every module.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from t2t.models.hooks import is_hooked
from t2t.models.layers import DropPath, Mlp, SelfAttention
from t2t.models.shards import is_dtensor
from t2t.ops.availability import runs_kernels
from t2t.ops.block_stack import BlockWeights
from t2t.ops.performer_step import StepWeights, compute_dtype
from t2t.ops.softmax_step import SoftmaxWeights

MIN_DROPPED = 2
"""With fewer dropped samples per batch, a fixed count rounds the rate too much."""


def is_fused(x: Tensor) -> bool:
    """Whether layers on this tensor run fused: in half precision, by Triton kernels."""
    # An empty batch has no programs to launch.
    return x.is_cuda and len(x) > 0 and runs_kernels(x, compute_dtype(x))


def are_plain(modules: Sequence[nn.Module]) -> bool:
    """Whether all are nn.Linear or nn.LayerNorm with bias, not sharded or hooked."""
    return all(is_plain(module) and module.bias is not None for module in modules)


def is_plain(module: nn.Module) -> bool:
    """Whether a layer is nn.Linear or nn.LayerNorm, not sharded or hooked."""
    return (
        type(module) in (nn.Linear, nn.LayerNorm)
        and module.weight is not None
        and not is_wrapped(module.weight)
        and not is_hooked(module)
    )


def is_wrapped(weight: object) -> bool:
    """Whether a weight wraps other tensors, such as shards or quantized weights.

    Compiled code checks for shards only: under some compilers every attribute exists.
    """
    if is_dtensor(weight):
        return True
    return not torch.compiler.is_compiling() and hasattr(weight, "__tensor_flatten__")


def is_plain_mlp(mlp: nn.Module) -> bool:
    """Whether an MLP is two linear layers with exact GELU between, without hooks."""
    if type(mlp) is not Mlp or type(mlp.expand) is not nn.Sequential:
        return False
    if len(mlp.expand) != 2 or type(mlp.expand[1]) is not nn.GELU:
        return False
    gelu = mlp.expand[1]
    hooked = any(is_hooked(module) for module in (mlp, mlp.expand, gelu))
    return not hooked and gelu.approximate == "none"


def block_weights(block: Any, within: bool = False) -> BlockWeights | None:
    """The weights of a block of plain attention and MLP; None for other blocks.

    Hooks of the block itself do not matter `within` its own forward pass.
    """
    mixer, mlp = block.mixer, block.mlp
    if type(mixer) is not SelfAttention or mixer.shorten is not None:
        return None
    if type(mixer.gate) is not nn.Identity or type(block.drop_path) is not DropPath:
        return None
    if not is_plain_mlp(mlp):
        return None
    parts = [block.norm1, mixer.qkv, mixer.proj, block.norm2, mlp.expand[0], mlp.reduce]
    others = [part for part in parts if part is not mixer.qkv]
    softmax, dropout = mixer.attn, mixer.attn.attn_drop
    if dropout.training and dropout.p > 0:
        return None
    around = [mixer, softmax, dropout, mixer.gate, block.drop_path]
    if not within:
        around.append(block)
    if not is_plain(mixer.qkv) or not are_plain(others):
        return None
    if any(is_hooked(module) for module in around):
        return None
    return BlockWeights(*(each for part in parts for each in (part.weight, part.bias)))


def step_weights(step: Any) -> StepWeights | None:
    """The weights of a Performer step; None if its modules were changed."""
    parts = plain_step(step)
    if parts is None or step.qkv.bias is None:
        return None
    first, qkv, *rest = ((part.weight, part.bias) for part in parts)
    return StepWeights(
        *first, *qkv, step.features, *(each for pair in rest for each in pair)
    )


def softmax_weights(step: Any) -> SoftmaxWeights | None:
    """The weights of a softmax step; None if its modules were changed."""
    parts = plain_step(step)
    if parts is None or step.qkv.bias is not None:
        return None
    first, qkv, *rest = ((part.weight, part.bias) for part in parts)
    return SoftmaxWeights(*first, qkv[0], *(each for pair in rest for each in pair))


def plain_step(step: Any) -> list[Any] | None:
    """The layers of a tokens-to-token step, in order; None if they were changed."""
    mlp = step.mlp
    if not is_plain_mlp(mlp) or type(step.dropout) is not nn.Dropout:
        return None
    parts = [step.norm1, step.qkv, step.proj, step.norm2, mlp.expand[0], mlp.reduce]
    others = [part for part in parts if part is not step.qkv]
    if not is_plain(step.qkv) or not are_plain(others):
        return None
    if any(is_hooked(part) for part in (step, step.dropout)):
        return None
    is_whole = step.dropout.training == step.training
    return parts if is_whole and step.norm1.eps == step.norm2.eps else None
