"""Every Triton kernel against its plain reference, forward and backward."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# Set by arithmetic: float32 throughout, and GELU's polynomial where there is one.
TOLERANCE = {
    "attention of 16": 2e-6,
    "attention of 37": 2e-6,
    "attention of 128": 2e-6,
    "attention of 197": 2e-6,
    "attention of 257": 2e-6,
    "attention of 577": 2e-6,
    "attention by heads of 16": 2e-6,
    "attention by heads of 32": 2e-6,
    # The logits themselves are known to float32's 24 bits: 400 to 3e-5.
    "attention far below zero": 1e-4,
    # Backward rounds them otherwise than forward did, and multiplies by keys of 200.
    "attention of 37 far below zero": 2e-3,
    "attention in wide tiles": 2e-6,
    "residual_norm": 1e-6,
    "residual_norm of one gradient": 1e-6,
    "residual_norm dropping": 1e-6,
    "residual_norm of a float32 stream": 1e-6,
    "norm": 1e-6,
    "norm dropping": 1e-6,
    "gelu": 1e-4,
    "token_transformer": 2e-4,
    "token_transformer dropout": 2e-4,
    "token_transformer large": 2e-4,
}


@pytest.fixture(scope="module")
def errors() -> dict[str, dict[str, list[float]]]:
    pytest.importorskip("triton")
    done = subprocess.run(
        [
            *(sys.executable, Path(__file__).with_name("kernel_errors.py")),
            *("cpu", "float32"),
        ],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("case", TOLERANCE)
@pytest.mark.parametrize("kind", ["out", "grad"])
def test_kernel_agrees_with_its_reference(errors, case, kind):
    assert errors[case][kind]
    for error in errors[case][kind]:
        assert error < TOLERANCE[case]


def test_no_case_is_left_out(errors):
    assert errors.keys() == TOLERANCE.keys()
