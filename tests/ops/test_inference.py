"""The operations for inference on a CPU give what their references give."""

import subprocess
import sys
from contextlib import nullcontext

import pytest
import torch

from t2t.ops.block_stack import BlockWeights, block_stack_reference
from t2t.ops.inference_stack import inference_stack
from t2t.ops.inference_step import inference_step
from t2t.ops.performer_step import StepWeights, performer_step_reference
from t2t.ops.prepared import Preparations
from t2t.ops.soft_split import Split


def block_weights(dim: int, hidden: int, qkv_bias: bool) -> BlockWeights:
    shapes = [(dim,), (dim,), (3 * dim, dim), (3 * dim,), (dim, dim), (dim,)]
    shapes += [(dim,), (dim,), (hidden, dim), (hidden,), (dim, hidden), (dim,)]
    found = BlockWeights(*(torch.randn(shape) * 0.2 for shape in shapes))
    return found if qkv_bias else found._replace(qkv_bias=None)


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("qkv_bias", [True, False])
@pytest.mark.parametrize("num_read", [1, 2, 20])
def test_the_stack_equals_its_reference(
    num_read: int, qkv_bias: bool, keep: bool
) -> None:
    torch.manual_seed(num_read)
    blocks = [block_weights(32, 48, qkv_bias) for _ in range(3)]
    final = (torch.randn(32), torch.randn(32))
    tokens = torch.randn(2, 20, 32)
    before = tokens.clone()
    inputs = (tokens, blocks, final, 2, 0.25, 1e-5, num_read)
    expected = block_stack_reference(*inputs)
    with torch.inference_mode(), Preparations().in_use() if keep else nullcontext():
        found = inference_stack(*inputs)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(tokens, before)


@pytest.mark.parametrize("size", [0.2, 1.0])
@pytest.mark.parametrize(
    ("channels", "split"), [(3, Split(7, 4, 2)), (5, Split(3, 1, 1))]
)
def test_the_step_equals_its_reference(
    channels: int, split: Split, size: float
) -> None:
    torch.manual_seed(0)
    window = channels * split.kernel**2
    shapes = [(window,), (window,), (192, window), (192,), (32, 64), (64, 64), (64,)]
    shapes += [(64,), (64,), (64, 64), (64,), (64, 64), (64,)]
    tensors = [torch.randn(shape) * 0.1 for shape in shapes]
    tensors[2] *= size
    weights = StepWeights(*tensors)
    image = torch.randn(2, channels, 21, 18)
    # In float64: the reference unfolds and sums in another order.
    expected, _ = performer_step_reference(
        image.double(),
        None,
        split,
        StepWeights(*(tensor.double() for tensor in tensors)),
        torch.tensor(0),
        0.0,
        1e-5,
    )
    with torch.inference_mode():
        found = inference_step(image, split, weights, 1e-5)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)


FAULTS = """
import resource, torch
from t2t.ops.freed_memory import keep_freed_memory
keep_freed_memory()
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        some = [torch.ones(500_000) for _ in range(5)]
        del some
    after = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print(after - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's heap is meant")
def test_freed_memory_is_used_again() -> None:
    """Fresh pages for all of it would be 24,400 faults; some systems keep some."""
    told = subprocess.run(
        [sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True
    )
    assert int(told.stdout) < 1000
