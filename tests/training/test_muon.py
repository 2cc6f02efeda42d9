"""Our Muon is PyTorch's, for many matrices at once and in any precision."""

import pytest
import torch
from torch import nn

from t2t.training.muon import Muon, orthogonal, orthogonal_each


def matrices() -> list[nn.Parameter]:
    torch.manual_seed(0)
    shapes = [(8, 12), (8, 12), (12, 8), (8, 12), (6, 6)]
    return [nn.Parameter(torch.randn(shape)) for shape in shapes]


def test_steps_are_those_of_pytorch() -> None:
    ours, theirs = matrices(), matrices()
    settings = {"lr": 0.02, "momentum": 0.95, "weight_decay": 0.1}
    fast = Muon([{"params": ours}], **settings)
    plain = torch.optim.Muon(theirs, adjust_lr_fn="match_rms_adamw", **settings)
    for seed in range(4):
        for parameters in (ours, theirs):
            torch.manual_seed(seed)
            for parameter in parameters:
                parameter.grad = torch.randn_like(parameter)
        fast.step()
        plain.step()
    for mine, other in zip(ours, theirs, strict=True):
        # PyTorch computes in bfloat16; a step has the size 0.02 · 0.2 · √12.
        torch.testing.assert_close(mine, other, atol=2e-3, rtol=0)


@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (3, 7, 7)])
def test_singular_values_come_near_one(shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    values = torch.linalg.svdvals(orthogonal(torch.randn(shape)))
    assert values.min() > 0.3
    assert values.max() < 1.4


def test_matrices_of_all_shapes_together_come_out_as_each_alone() -> None:
    torch.manual_seed(2)
    shapes = [(8, 24), (8, 8), (4, 3), (24, 8), (8, 24), (16, 8), (5, 9), (9, 5)]
    updates = [torch.randn(shape) for shape in shapes]
    for update, found in zip(updates, orthogonal_each(updates), strict=True):
        assert found.is_contiguous()
        torch.testing.assert_close(found, orthogonal(update), atol=1e-5, rtol=1e-5)


def test_a_matrix_without_gradient_stays() -> None:
    moving, resting = nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.ones(4, 4))
    optimizer = Muon([{"params": [moving, resting]}], lr=0.1)
    moving.grad = torch.eye(4)
    optimizer.step()
    assert not torch.equal(moving, torch.ones(4, 4))
    assert torch.equal(resting, torch.ones(4, 4))


def test_a_gradient_of_zeros_changes_nothing() -> None:
    matrix = nn.Parameter(torch.ones(4, 4))
    optimizer = Muon([{"params": [matrix]}], lr=0.1)
    matrix.grad = torch.zeros(4, 4)
    optimizer.step()
    torch.testing.assert_close(matrix.detach(), torch.ones(4, 4))
