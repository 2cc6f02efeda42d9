"""Whether somebody listens to a module, or traces what it does."""

import torch
from torch import nn
from torch.fx import Proxy
from torch.nn.modules.module import _has_any_global_hook


def is_hooked(module: nn.Module) -> bool:
    """Whether somebody listens to a module, or calls another function in its place.

    Compiled code is never asked.
    """
    if torch.compiler.is_compiling():
        return False
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in vars(module)
        or _has_any_global_hook()
    )


def is_traced(x: object) -> bool:
    """Whether x stands for a tensor while an FX graph is drawn."""
    return isinstance(x, Proxy)
