"""Our AdamW and SGD are torch's to the bit, and take each other's state."""

import subprocess
import sys
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn

from t2t.training.torch_optimizers import SGD, AdamW

CASES = [
    (AdamW, torch.optim.AdamW, {"betas": (0.9, 0.95)}),
    (AdamW, torch.optim.AdamW, {"fused": True}),
    (SGD, torch.optim.SGD, {"momentum": 0.9}),
    (SGD, torch.optim.SGD, {"momentum": 0.9, "fused": True}),
]


def parameters() -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape)) for shape in [(8, 12), (12,), (3, 2, 2)]]


def take_steps(optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        torch.manual_seed(step)
        optimizer.zero_grad()
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / (1 + step)
            loss = sum(
                (each * torch.randn_like(each)).sum() for each in group["params"]
            )
            assert isinstance(loss, torch.Tensor)
            loss.backward()
        optimizer.step()


@pytest.mark.parametrize(("ours", "theirs", "settings"), CASES)
def test_steps_and_states_are_torchs(
    ours: Any, theirs: Any, settings: dict[str, Any]
) -> None:
    weights = [parameters() for _ in range(4)]
    settings = {"lr": 0.1, "weight_decay": 0.05, **settings}
    one, other = ours(weights[0], **settings), theirs(weights[1], **settings)
    for optimizer in (one, other):
        take_steps(optimizer, range(3))
    # Each goes on with the other's state.
    own, others = deepcopy(one.state_dict()), deepcopy(other.state_dict())
    assert own["param_groups"] == others["param_groups"]
    two, another = ours(weights[2], **settings), theirs(weights[3], **settings)
    for group, given, optimizer, state in (
        (weights[2], weights[1], two, others),
        (weights[3], weights[0], another, own),
    ):
        optimizer.load_state_dict(state)
        for parameter, value in zip(group, given, strict=True):
            parameter.data.copy_(value.data)
    for optimizer in (one, other, two, another):
        take_steps(optimizer, range(3, 6))
    for found in weights[1:]:
        for mine, wanted in zip(found, weights[0], strict=True):
            assert torch.equal(mine, wanted)


def test_a_step_is_no_part_of_the_graph_and_runs_hooks() -> None:
    optimizer = AdamW(parameters(), lr=0.1)
    called: list[Any] = []
    optimizer.register_step_post_hook(lambda *given: called.append(given))
    take_steps(optimizer, range(1))
    assert torch.is_grad_enabled()
    assert len(called) == 1
    (group,) = optimizer.param_groups
    assert all(each.is_leaf for each in group["params"])


def test_the_compiler_is_not_imported() -> None:
    script = """
import sys, torch
from t2t.training.muon import Muon
from t2t.training.torch_optimizers import SGD, AdamW
for kind in (AdamW, SGD, Muon):
    weight = torch.nn.Parameter(torch.zeros(2, 2))
    optimizer = kind([{"params": [weight]}], lr=0.1)
    optimizer.zero_grad()
    weight.grad = torch.ones(2, 2)
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
sys.exit("torch._dynamo" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True)
