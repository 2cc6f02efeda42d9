"""Whether a module has hooks, or is being traced by torch.fx."""

import torch
from torch import nn
from torch.fx import Proxy
from torch.nn.modules.module import _has_any_global_hook

from t2t.models.shards import is_sharded


def is_hooked(module: nn.Module) -> bool:
    """Whether a module has hooks or a replaced `forward`; False in compiled code.

    The two hooks by which FSDP gathers weights do not count.
    """
    if torch.compiler.is_compiling():
        return False
    num_own = 1 if is_sharded(module) else 0
    return bool(
        len(module._forward_hooks) > num_own
        or len(module._forward_pre_hooks) > num_own
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in vars(module)
        or _has_any_global_hook()
    )


def is_traced(x: object) -> bool:
    """Whether x is a proxy for a tensor in torch.fx tracing."""
    return isinstance(x, Proxy)
