"""What is made of weights is kept, and made again when they change."""

import copy
import pickle
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from t2t.ops.packed_linear import HAS_MKL, linear, linear_reference
from t2t.ops.prepared import (
    Preparations,
    infers_on_cpu,
    keeps_preparations,
    prepared,
)


def test_made_once_and_after_every_change() -> None:
    made: list[int] = []

    def doubled(weights: Sequence[Tensor], extra: int) -> Tensor:
        made.append(extra)
        return 2 * weights[0] + extra

    weight, other = torch.ones(3), torch.ones(3)
    assert prepared(doubled, (weight,), 0).tolist() == [2, 2, 2]
    prepared(doubled, (weight,), 0)
    assert len(made) == 2
    assert not keeps_preparations(weight)
    preparations = Preparations()
    for _ in range(2):
        with preparations.in_use():
            assert keeps_preparations(weight)
            for _ in range(2):
                prepared(doubled, (weight,), 1)
                prepared(doubled, (weight,), 2)
                prepared(doubled, (other,), 1)
    assert made == [0, 0, 1, 2, 1]
    weight.add_(1)
    with preparations.in_use():
        assert prepared(doubled, (weight,), 1).tolist() == [5, 5, 5]
        assert prepared(doubled, (weight[1:],), 1).tolist() == [5, 5]
    assert len(made) == 7
    assert not keeps_preparations(weight)


def test_a_parameter_given_other_memory_is_prepared_again() -> None:
    weight = nn.Parameter(torch.zeros(1000))
    with torch.no_grad(), Preparations().in_use():
        for level in range(6):
            # As `model.half().float()` does; the memory of before is free again.
            weight.data = torch.full((1000,), float(level))
            assert prepared(total, (weight,)) == 1000 * level


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("fused", [True, False])
def test_what_an_optimizer_writes_is_a_change(
    kind: type[torch.optim.SGD] | type[torch.optim.AdamW], fused: bool
) -> None:
    weight = nn.Parameter(torch.ones(4))
    optimizer = kind([weight], lr=0.5, fused=fused)
    with torch.no_grad(), Preparations().in_use():
        for _ in range(3):
            assert prepared(total, (weight,)) == weight.sum()
            weight.grad = torch.ones(4)
            optimizer.step()


def test_copies_begin_empty() -> None:
    x, weight = torch.randn(20, 24), torch.randn(56, 24)
    preparations = Preparations()
    with torch.no_grad(), preparations.in_use():
        linear(x, weight, None)
        prepared(total, (weight,))
    assert preparations._kept
    assert not copy.deepcopy(preparations)._kept
    assert not pickle.loads(pickle.dumps(preparations))._kept


def test_a_weight_and_its_transpose_are_two() -> None:
    weight = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    with torch.no_grad(), Preparations().in_use():
        for each in (weight, weight.T):
            assert torch.equal(prepared(first_row, (each,)), each[0])


def test_weights_that_count_no_changes_are_prepared_every_time() -> None:
    with torch.inference_mode(), Preparations().in_use():
        weight = torch.ones(3)
        assert not keeps_preparations(weight)
        for level in (1.0, 2.0):
            weight.fill_(level)
            assert prepared(total, (weight,)) == 3 * level


def first_row(weights: Sequence[Tensor]) -> Tensor:
    return weights[0][0].clone()


def total(weights: Sequence[Tensor]) -> Tensor:
    return weights[0].sum()


@pytest.mark.parametrize("shape", [(40, 24), (1, 40, 24), (2, 20, 24), (3, 24)])
@pytest.mark.parametrize("biased", [True, False])
def test_packed_linear_equals_the_reference(
    shape: tuple[int, ...], biased: bool
) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(shape), torch.randn(56, 24)
    bias = torch.randn(56) if biased else None
    preparations = Preparations()
    for _ in range(2):
        expected = linear_reference(x, weight, bias)
        with torch.no_grad(), preparations.in_use():
            torch.testing.assert_close(linear(x, weight, bias), expected)
        weight.mul_(-0.5)
    assert bool(preparations._kept) == (HAS_MKL and shape != (3, 24))


def test_only_plain_inference_on_a_cpu_takes_the_fast_path() -> None:
    x = torch.zeros(2, 3)
    assert not infers_on_cpu(x)
    with torch.inference_mode():
        assert infers_on_cpu(x)
        assert not infers_on_cpu(x.double())
        assert not infers_on_cpu(x.to("meta"))
        with torch.autocast("cpu", torch.bfloat16):
            assert not infers_on_cpu(x)
    with torch.no_grad():
        assert infers_on_cpu(x)
        assert not infers_on_cpu(x.as_subclass(Quantized))
        assert not torch.vmap(lambda row: row + infers_on_cpu(x))(x).any()
        with torch.autograd.forward_ad.dual_level():
            assert not infers_on_cpu(x)


class Quantized(Tensor):
    """Somebody's own tensor, whose numbers may lie elsewhere."""
