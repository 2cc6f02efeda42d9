"""Our Muon is PyTorch's, for many matrices at once and in any precision."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from t2t.training import muon
from t2t.training.muon import Muon, orthogonalize, orthogonalize_all


def matrices(*filters: tuple[int, ...]) -> list[nn.Parameter]:
    torch.manual_seed(0)
    shapes = [(8, 12), (8, 12), (12, 8), (8, 12), (6, 6), *filters]
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


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_filters_step_as_a_matrix_of_a_row_each(layout: torch.memory_format) -> None:
    torch.manual_seed(0)
    shapes = [(8, 4, 3, 3), (40, 8, 2, 2), (6, 5, 1, 1)]
    rows = [nn.Parameter(torch.randn(shape).flatten(1)) for shape in shapes]
    filters = [
        nn.Parameter(each.detach().view(shape).clone(memory_format=layout))
        for each, shape in zip(rows, shapes, strict=True)
    ]
    for parameters in (rows, filters):
        optimizer = Muon([{"params": parameters}], lr=0.02, weight_decay=0.1)
        torch.manual_seed(0)
        for _ in range(3):
            for parameter in parameters:
                gradient = torch.randn(parameter.numel()).view(parameter.shape)
                parameter.grad = torch.empty_like(parameter).copy_(gradient)
            optimizer.step()
    for flat, each in zip(rows, filters, strict=True):
        assert each.is_contiguous(memory_format=layout)
        torch.testing.assert_close(each.flatten(1), flat, atol=1e-5, rtol=1e-5)


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    """One process that holds all shards."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_shards_step_as_whole_matrices_do(mesh: DeviceMesh) -> None:
    whole = matrices((8, 3, 2, 2))
    shards = [
        nn.Parameter(distribute_tensor(matrix.detach().clone(), mesh, [Shard(0)]))
        for matrix in whole
    ]
    for parameters in (whole, shards):
        optimizer = Muon([{"params": parameters}], lr=0.02, weight_decay=0.1)
        torch.manual_seed(0)
        for _ in range(3):
            for parameter in parameters:
                gradient = torch.randn(parameter.shape)
                if isinstance(parameter, DTensor):
                    gradient = distribute_tensor(gradient, mesh, [Shard(0)])
                parameter.grad = gradient
            optimizer.step()
    for matrix, shard in zip(whole, shards, strict=True):
        torch.testing.assert_close(shard.full_tensor(), matrix, atol=1e-5, rtol=1e-5)  # type: ignore[attr-defined]


def test_a_process_gathers_only_so_much_momentum_at_once(
    mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(muon, "GATHERED_BYTES", 2 * 8 * 12 * 4)
    whole = matrices()
    shards = [distribute_tensor(each.detach(), mesh, [Shard(0)]) for each in whole]
    assert [*map(len, muon.gathered_together(shards))] == [2, 2, 1]
    assert muon.gathered_together([*whole]) == [whole]


@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (3, 7, 7)])
def test_singular_values_come_near_one(shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    values = torch.linalg.svdvals(orthogonalize(torch.randn(shape)))
    assert values.min() > 0.3
    assert values.max() < 1.4


@pytest.mark.parametrize("joins", [False, True])
def test_matrices_of_all_shapes_together_come_out_as_each_alone(
    joins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches_of = muon.batches_of
    monkeypatch.setattr(
        muon, "batches_of", lambda numbers, _: batches_of(numbers, joins)
    )
    torch.manual_seed(2)
    shapes = [(8, 24), (8, 8), (4, 3), (24, 8), (8, 24), (16, 8), (5, 9), (9, 5)]
    updates = [torch.randn(shape) for shape in shapes]
    for update, found in zip(updates, orthogonalize_all(updates), strict=True):
        assert found.is_contiguous()
        torch.testing.assert_close(found, orthogonalize(update), atol=1e-5, rtol=1e-5)


def test_a_few_small_matrices_join_the_large_ones() -> None:
    numbers = {(256, 256): 7, (64, 64): 6, (512, 256): 7, (192, 576): 1, (32, 32): 4}
    large, small = [(256, 256), (512, 256)], [(64, 64)]
    joined = muon.batches_of(numbers, joins=True)
    assert joined == [[*large, (192, 576), *small], [(32, 32)]]
    assert len(muon.batches_of(numbers, joins=False)) == 4


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
