"""The kernels of augmentation and of its draws against the plain code, bit for bit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from t2t.data.augment.operations import OPERATIONS
from t2t.ops.availability import HAS_TRITON
from t2t.ops.draw_bits import draw_bits, draw_bits_reference, draw_keys

SCRIPT = Path(__file__).with_name("augment_differences.py")


def differences(device: str, **environment: str) -> dict[str, list[float]]:
    done = subprocess.run(
        [sys.executable, "-W", "error", SCRIPT, device],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
@pytest.mark.usefixtures("interpreter")
def test_kernels_agree_with_plain_code_in_the_interpreter():
    found = differences("cpu", TRITON_INTERPRET="1")
    assert set(found) >= {name for name, each in OPERATIONS.items() if each.kernel}
    for case, (largest, share) in found.items():
        # Noise alone may differ, by the rounding of logarithm and cosine.
        assert largest < 1e-6, case
        assert share == 0 or case.startswith("augment "), case


@pytest.mark.cuda
def test_kernels_agree_with_plain_code_on_the_gpu():
    for case, (largest, share) in differences("cuda").items():
        if case.startswith("augment "):
            # A turned pixel whose place rounds otherwise, widened by what comes after.
            assert share < 0.2, case
        elif "rotate" in case or case == "all operations":
            assert largest <= 1, case
        else:
            assert largest == 0, case


def test_compiled_programs_draw_through_operators():
    graphs = []

    def look(graph, inputs):
        graphs.append([str(node.target) for node in graph.graph.nodes])
        return graph.forward

    def draw(step, indices):
        keys, step_key = draw_keys(3, step, indices)
        return draw_bits(keys, 5, 2), step_key

    compiled = torch.compile(draw, fullgraph=True, backend=look)
    step, indices = torch.tensor(4), torch.arange(6)
    bits, step_key = compiled(step, indices)
    keys, wanted = draw_keys(3, step, indices)
    assert torch.equal(step_key, wanted)
    assert torch.equal(bits, draw_bits_reference(keys, 5, 2))
    assert any("draw_keys" in target for target in graphs[0])
    assert any("draw_bits" in target for target in graphs[0])
    assert not any("xor" in target for target in graphs[0])
