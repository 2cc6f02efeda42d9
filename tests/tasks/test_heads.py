"""Heads of tasks that compare views, and their teacher."""

import math

import pytest
import torch
from torch import nn

from t2t.errors import UserError
from t2t.tasks.heads import (
    MomentumTeacher,
    PrototypeHead,
    feature_width,
    mlp,
    momentum_at,
)
from t2t.tasks.processes import BatchNorm, Centre, own_rows, rows_of_all


def test_a_head_ends_with_a_linear_layer_or_a_plain_batch_norm() -> None:
    kinds = [type(part).__name__ for part in mlp([4, 8, 2])]
    assert kinds == ["Linear", "BatchNorm", "ReLU", "Linear"]
    head = mlp([4, 8, 8, 2], last_norm=True)
    assert [type(part).__name__ for part in head][-2:] == ["Linear", "BatchNorm"]
    assert head[-1].weight is None
    assert [part.bias is None for part in head if isinstance(part, nn.Linear)] == [
        True,
        True,
        True,
    ]
    out = head(torch.randn(32, 4))
    torch.testing.assert_close(out.mean(0), torch.zeros(2), atol=1e-5, rtol=0)


def test_a_batch_norm_of_one_process_is_torchs() -> None:
    rows = torch.randn(8, 3)
    ours, theirs = BatchNorm(3), nn.BatchNorm1d(3)
    assert torch.equal(ours(rows), theirs(rows))
    assert torch.equal(ours.running_var, theirs.running_var)
    assert rows_of_all(rows) is rows
    assert own_rows(rows).tolist() == [*range(8)]


def test_a_centre_subtracts_the_mean_of_earlier_rows() -> None:
    centre = Centre(2, momentum=0.1)
    rows = torch.tensor([[1.0, 2.0], [3.0, 6.0]])
    assert torch.equal(centre(rows), rows)
    moved = torch.tensor([0.2, 0.4])
    torch.testing.assert_close(centre.running_mean, moved)
    centre.eval()
    torch.testing.assert_close(centre(rows), rows - moved)
    torch.testing.assert_close(centre.running_mean, moved)


def test_prototypes_give_cosines() -> None:
    head = PrototypeHead(4, 16, 8, 5)
    features = torch.randn(6, 4)
    hidden = head.mlp(features)[:, None]
    cosines = torch.cosine_similarity(hidden, head.prototypes.weight[None], dim=2)
    torch.testing.assert_close(head(features), cosines)
    for trains in (False, True):
        head.zero_grad()
        head(torch.randn(6, 4), torch.tensor(trains)).square().sum().backward()
        assert bool(head.prototypes.weight.grad.any()) == trains
        assert head.mlp[0].weight.grad.any()


def test_the_momentum_rises_to_one() -> None:
    found = [momentum_at(torch.tensor(share), 0.9) for share in (0.0, 0.5, 1.0)]
    assert found == pytest.approx([0.9, 0.95, 1.0])
    third = momentum_at(torch.tensor(1 / 3), 0.9).item()
    assert third == pytest.approx(1 - 0.1 * (1 + math.cos(math.pi / 3)) / 2)


def test_a_teacher_follows_and_drops_nothing() -> None:
    encoder = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    head = mlp([4, 8, 2])
    teacher = MomentumTeacher(encoder, head)
    teacher.train()
    assert not teacher.encoder[1].training
    assert teacher.head[1].training
    teacher.eval()
    assert not teacher.head[1].training
    assert not any(each.requires_grad for each in teacher.parameters())
    before = teacher.encoder[0].weight.clone()
    with torch.no_grad():
        encoder[0].weight.add_(1)
    teacher.follow(encoder, head, torch.tensor(0.9), torch.zeros(()))
    assert torch.equal(teacher.encoder[0].weight, before)
    teacher.follow(encoder, head, torch.tensor(0.9), torch.ones(()))
    torch.testing.assert_close(teacher.encoder[0].weight, before + 0.1)


def test_a_model_without_a_width_is_refused() -> None:
    with pytest.raises(UserError, match="mine does not name the width"):
        feature_width(nn.Linear(1, 1), "mine")
