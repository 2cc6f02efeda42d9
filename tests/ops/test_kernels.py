"""Every Triton kernel against its plain reference, forward and backward.

In float32 by Triton's interpreter, and compiled in half precision if there is a GPU.
"""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from t2t.ops.availability import (
    HAS_TRITON,
    MATMUL_SHARED_MEMORY,
    shared_memory,
)

pytestmark = pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
SCRIPT = Path(__file__).with_name("kernel_errors.py")

# float32 sums, and the polynomial inside GELU.
FLOAT32 = {
    "attention": 2e-6,
    # Logits of 400 have an error of 3e-5 in float32's 24 bits.
    "attention far below zero": 1e-4,
    "attention of 37 far below zero": 1e-4,
    "first_attention": 2e-6,
    "embedding": 1e-6,
    "image_windows": 2e-6,
    "gathered_windows": 2e-6,
    "ranks": 1e-9,
    "sum_partials": 1e-6,
    "residual_norm": 1e-6,
    "norm": 1e-6,
    "gelu": 1e-4,
    "token_transformer": 2e-4,
}
# About twice the errors of records/speed-operations/kernel-errors.json.
BFLOAT16 = {
    "attention": 6e-3,
    "attention far below zero": 5e-2,
    "attention of 37 far below zero": 5e-2,
    "first_attention": 1.6e-2,
    "embedding": 5e-3,
    "image_windows": 4e-3,
    "gathered_windows": 4e-3,
    "ranks": 1e-9,
    "sum_partials": 4e-6,
    "residual_norm": 6e-3,
    "norm": 5e-3,
    "gelu": 5e-3,
    "token_transformer": 1.5e-2,
    "token_transformer large": 0.15,
}
CASES = (
    *(f"attention of {tokens}" for tokens in (16, 37, 128, 197, 257, 577)),
    *("attention by heads of 16", "attention by heads of 32"),
    *("attention far below zero", "attention of 37 far below zero"),
    *("attention in wide tiles", "first_attention"),
    *("first_attention of two with bias", "embedding", "embedding of some"),
    *("embedding without positions", "image_windows", "image_windows of stride 1"),
    *("image_windows without overlap", "image_windows of channels last"),
    *("gathered_windows", "gathered_windows of one channel"),
    *("gathered_windows of channels last", "ranks", "ranks of few"),
    *("sum_partials", "sum_partials of few"),
    *("residual_norm", "residual_norm of one gradient"),
    *("residual_norm whose sum is not read", "residual_norm dropping"),
    "residual_norm of a float32 stream",
    *("norm", "norm dropping", "gelu"),
    *("token_transformer", "token_transformer dropout", "token_transformer large"),
)


def tolerance(case: str, dtype: torch.dtype) -> float:
    """The largest error allowed in a case; float16 has three more bits."""
    limits = FLOAT32 if dtype == torch.float32 else BFLOAT16
    limit = limits.get(case) or limits[case.split()[0]]
    return limit / 4 if dtype == torch.float16 else limit


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(SCRIPT.parent)
    return importlib.import_module("kernel_errors")


@pytest.fixture(scope="module")
def interpreted(
    interpreter: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], dict[str, list[float]]]]:
    """The errors of a case, computed by a process that imports Triton's interpreter."""
    log = tmp_path_factory.mktemp("interpreter") / "errors.txt"
    with (
        log.open("w") as stderr,
        subprocess.Popen(
            [sys.executable, SCRIPT, "cpu", "float32", "-"],
            env=os.environ | {"TRITON_INTERPRET": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        ) as process,
    ):
        requests, answers = process.stdin, process.stdout
        assert requests is not None
        assert answers is not None

        def errors_of(case: str) -> dict[str, list[float]]:
            print(case, file=requests, flush=True)
            answer = answers.readline()
            assert answer, log.read_text()
            return json.loads(answer)

        yield errors_of
        requests.close()


def check(errors: dict[str, list[float]], limit: float) -> None:
    for kind in errors:
        assert errors[kind]
        for error in errors[kind]:
            assert error < limit, kind


@pytest.mark.parametrize("case", CASES)
def test_interpreted_kernels_match_their_reference(interpreted, case):
    check(interpreted(case), tolerance(case, torch.float32))


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_compiled_kernels_match_their_reference(script, case, dtype):
    has_matmuls = case.startswith(("attention", "token_transformer"))
    if has_matmuls and shared_memory(torch.device("cuda")) < MATMUL_SHARED_MEMORY:
        pytest.skip("this GPU takes the plain path")
    errors = script.errors_of(case, script.Target("cuda", dtype))
    check(errors, tolerance(case, dtype))


def test_no_case_is_left_out(script):
    assert tuple(script.CASES) == CASES
