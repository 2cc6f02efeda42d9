"""A stack of blocks gives what its blocks give one by one."""

import pytest
import torch

from t2t.ops.block_stack import (
    NUM_CAST_TOGETHER,
    BlockWeights,
    block_stack,
    block_stack_reference,
    cast_matrices,
)


def random_block(dim: int, hidden: int, *, with_bias: bool) -> BlockWeights:
    def draw(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, dtype=torch.float64) * 0.3).requires_grad_()

    return BlockWeights(
        *(draw(dim), draw(dim), draw(3 * dim, dim)),
        draw(3 * dim) if with_bias else None,
        *(draw(dim, dim), draw(dim), draw(dim), draw(dim)),
        *(draw(hidden, dim), draw(hidden), draw(dim, hidden), draw(dim)),
    )


@pytest.mark.parametrize("num_read", [1, 2, 7])
@pytest.mark.parametrize("with_bias", [False, True])
def test_without_stochastic_depth_it_is_the_reference(num_read, with_bias):
    torch.manual_seed(0)
    blocks = [random_block(16, 24, with_bias=with_bias) for _ in range(3)]
    final = (torch.randn(16).double(), torch.randn(16).double())
    tokens = torch.randn(3, 7, 16, dtype=torch.float64, requires_grad=True)
    learned = [weight for block in blocks for weight in block if weight is not None]
    results = []
    for function in (block_stack, block_stack_reference):
        out = function(tokens, blocks, final, 2, 0.4, 1e-5, num_read)
        assert out.shape == (3, num_read, 16)
        grads = torch.autograd.grad(out.square().sum(), [tokens, *learned])
        results.append((out, *grads))
    for found, wanted in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("num_read", [1, 5])
def test_a_dropped_branch_leaves_its_samples_as_they_were(num_read):
    """One block at rate one half: every sample has both branches, one, or none."""
    torch.manual_seed(0)
    block = random_block(16, 24, with_bias=False)
    final = (torch.ones(16).double(), torch.zeros(16).double())
    tokens = torch.randn(8, 5, 16, dtype=torch.float64)

    def scaled(attention: float, mlp: float) -> torch.Tensor:
        choice = block._replace(
            proj=block.proj * attention,
            proj_bias=block.proj_bias * attention,
            fc2=block.fc2 * mlp,
            fc2_bias=block.fc2_bias * mlp,
        )
        return block_stack_reference(tokens, [choice], final, 2, 0.4, 1e-5, num_read)

    outcomes = [scaled(2, 2), scaled(0, 2), scaled(2, 0), scaled(0, 0)]
    out = block_stack(tokens, [block], final, 2, 0.4, 1e-5, num_read, [0.5])
    which = []
    for sample in range(8):
        same = [torch.allclose(out[sample], outcome[sample]) for outcome in outcomes]
        which.append(same.index(True))
    # Four of eight lose the attention (1 and 3), four the MLP (2 and 3).
    assert sum(outcome in (1, 3) for outcome in which) == 4
    assert sum(outcome in (2, 3) for outcome in which) == 4


def test_matrices_are_converted_and_get_their_gradients_back():
    torch.manual_seed(0)
    wide = [random_block(16, 24, with_bias=True) for _ in range(2)]
    mixed = [
        BlockWeights(*(each if each.ndim == 2 else each.float() for each in block))
        for block in wide
    ]
    final = (torch.randn(16), torch.randn(16))
    tokens = torch.randn(3, 7, 16)
    learned = [weight for block in wide for weight in block if weight.ndim == 2]
    out = block_stack(tokens, mixed, final, 2, 0.4, 1e-5, 7)
    assert out.dtype == torch.float32
    grads = torch.autograd.grad(out.square().sum(), learned)
    wanted = block_stack_reference(
        tokens.double(), wide, [each.double() for each in final], 2, 0.4, 1e-5, 7
    )
    exact = torch.autograd.grad(wanted.square().sum(), learned)
    torch.testing.assert_close(out.double(), wanted, rtol=1e-4, atol=1e-4)
    for found, grad in zip(grads, exact, strict=True):
        torch.testing.assert_close(found, grad, rtol=1e-3, atol=1e-3)


def test_frozen_matrices_stay_frozen_in_another_precision():
    """Else blocks before the first that learns would keep all for a backward pass."""
    blocks = [random_block(16, 24, with_bias=True) for _ in range(2)]
    for weight in blocks[0]:
        weight.requires_grad_(False)
    (first, second), _ = cast_matrices(blocks, torch.float32)
    for name in ("qkv", "proj", "fc1", "fc2"):
        assert not getattr(first, name).requires_grad
        assert getattr(second, name).requires_grad
    (first.qkv.sum() * second.qkv.sum()).backward()
    assert blocks[0].qkv.grad is None
    wanted = torch.full_like(second.qkv, first.qkv.sum().item()).double()
    torch.testing.assert_close(blocks[1].qkv.grad, wanted)


def test_a_float32_stream_is_nearer_to_the_truth_than_a_half_precision_one():
    torch.manual_seed(0)
    blocks = [random_block(16, 24, with_bias=True) for _ in range(12)]
    final = (torch.randn(16).double(), torch.randn(16).double())
    tokens = torch.randn(32, 7, 16, dtype=torch.float64)
    wanted = block_stack_reference(tokens, blocks, final, 2, 0.4, 1e-5, 7)
    narrow = [BlockWeights(*(each.float() for each in block)) for block in blocks]

    def error(stream: torch.dtype) -> float:
        """Of the output, with branches in bfloat16."""
        out = block_stack(
            tokens.to(stream),
            narrow,
            tuple(each.float() for each in final),
            *(2, 0.4, 1e-5, 7, None),
            torch.bfloat16,
        )
        assert out.dtype == torch.bfloat16
        return (out - wanted).norm().item()

    # About a half: the rest is the branches' rounding.
    assert error(torch.float32) < 0.75 * error(torch.bfloat16)


def test_gradients_of_later_blocks_are_ready_before_those_of_earlier_ones():
    """So several processes sum them up beside the backward pass of earlier blocks."""
    blocks = [
        BlockWeights(*(each.float().detach().requires_grad_() for each in block))
        for block in (
            random_block(16, 24, with_bias=True) for _ in range(2 * NUM_CAST_TOGETHER)
        )
    ]
    events: list[str] = []
    for number, block in enumerate(blocks):
        for name in ("qkv", "gain2"):  # the last is not cast
            weight = getattr(block, name)
            weight.register_post_accumulate_grad_hook(
                lambda _, seen=f"{name} {number}": events.append(seen)
            )
    final = (torch.ones(16), torch.zeros(16))
    tokens = torch.randn(3, 7, 16)
    out = block_stack(tokens, blocks, final, *(2, 0.4, 1e-5, 7, None), torch.bfloat16)
    out.sum().backward()
    assert len(events) == 4 * NUM_CAST_TOGETHER
    last = f"qkv {NUM_CAST_TOGETHER}"
    assert events.index(last) < events.index(f"gain2 {NUM_CAST_TOGETHER - 1}")
