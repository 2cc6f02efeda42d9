"""torch's optimizers, without the import of its compiler.

torch keeps its compiler from tracing an optimizer's methods, and imports it to say so:
at the first call of each, which takes seconds. We never compile an optimizer, and use
the methods as they are inside that.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor

from t2t.models.shards import is_dtensor, local_tensors, sharded_as

ADAMW_STEP = unwrap(torch.optim.AdamW.step)
SGD_STEP = unwrap(torch.optim.SGD.step)


class Optimizer(torch.optim.Optimizer):
    """The base of all optimizers."""

    add_param_group = unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = unwrap(torch.optim.Optimizer.zero_grad)
    state_dict = unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = unwrap(torch.optim.Optimizer.load_state_dict)


class AdamW(Optimizer, torch.optim.AdamW):
    """torch's AdamW."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Updates weights; of sharded ones, this process's shards."""
        with on_local_shards(self):
            return ADAMW_STEP(self, closure)


class SGD(Optimizer, torch.optim.SGD):
    """torch's SGD."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Updates weights; of sharded ones, this process's shards."""
        with on_local_shards(self):
            return SGD_STEP(self, closure)


@contextmanager
def on_local_shards(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Lets an optimizer that treats all numbers alike see plain tensors meanwhile.

    Sharded weights, their gradients and their state are views of what it sees: the
    state stays sharded, as checkpoints store it.
    """
    groups, state = optimizer.param_groups, optimizer.state
    before = [group["params"] for group in groups]
    if not any(is_dtensor(each) for weights in before for each in weights):
        yield
        return
    optimizer.state = defaultdict(dict)
    owners: dict[Tensor, Tensor] = {}
    for group, weights in zip(groups, before, strict=True):
        group["params"] = local_tensors(weights)
        for weight, local in zip(weights, group["params"], strict=True):
            owners[local] = weight
            if weight.grad is not None:
                local.grad = local_tensors([weight.grad])[0]
            memory = state.get(weight)
            if memory:
                values = local_tensors(memory.values())
                optimizer.state[local] = dict(zip(memory, values, strict=True))
    try:
        yield
    finally:
        seen, optimizer.state = optimizer.state, state
        for group, weights in zip(groups, before, strict=True):
            group["params"] = weights
        for local in owners:
            local.grad = None
        for local, memory in seen.items():
            known = state[owners[local]]
            for name, value in memory.items():
                if name not in known:
                    known[name] = sharded_as(owners[local], value)
