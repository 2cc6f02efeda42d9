"""A step as a CUDA graph holds it, without a GPU."""

import torch
from torch import Tensor

from t2t.data.sampler import Batch
from t2t.training.forward_backward import step_seed
from t2t.training.muon import Muon
from t2t.training.optim import all_groups
from t2t.training.step import Stepper


def fused(one: Stepper) -> Stepper:
    """With torch's kernels that can leave out a step, as on a GPU."""
    for optimizer in one.state.optimizers:
        if not isinstance(optimizer, Muon):
            for group in optimizer.param_groups:
                group["fused"] = True
    return one


def step_without_the_host(one: Stepper, batch: Batch) -> Tensor:
    """What a CUDA graph holds, called without one."""
    state, recipe = one.state, one.recipe
    torch.manual_seed(step_seed(recipe.seed, state.step, 0))
    share = 1 - recipe.ema.decay_at(state.step + 1)
    rates = [group["lr"] for group in all_groups(state.optimizers)]
    inputs = (batch.labels, batch.keys, torch.tensor(state.step), *batch.views)
    views = one.make_views(*inputs)
    found = one.captured_step(torch.tensor([*rates, share, 0.0, 0.0, 1.0]), *views)
    state.step += 1
    return found
