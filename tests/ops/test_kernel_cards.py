"""Every Triton kernel compiles for the GPUs people own and fits their shared memory."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from t2t.ops.availability import HAS_TRITON, MATMUL_SHARED_MEMORY

pytestmark = pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
ROOT = Path(__file__).parents[2]
CAPABILITIES = (75, 80, 86, 89, 90, 100, 120)


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("kernel_cards")


def check(cards: ModuleType, case: Any, card: Any, dtype: torch.dtype) -> None:
    """Compiles what the case launches and compares its needs to the card's limit."""
    if not case.runs_on(card):
        return
    limit = MATMUL_SHARED_MEMORY if case.has_matmuls else 64 << 10
    launches = cards.launches(case, dtype)
    assert launches
    kernels = [cards.compiled(launch, card) for launch in launches]
    for kernel in kernels:
        assert kernel.metadata.shared <= min(limit, card.shared_memory)
        assert kernel.asm["cubin"]
    # Beside products, a case may only sum what its programs have summed.
    assert any("tt.dot" in each.asm["ttir"] for each in kernels) == case.has_matmuls


@pytest.mark.parametrize(
    ("capability", "dtype"),
    [(75, torch.float16), (86, torch.bfloat16)],
)
def test_the_common_kernels_fit(
    cards: ModuleType, capability: int, dtype: torch.dtype
) -> None:
    (card,) = (card for card in cards.CARDS if card.capability == capability)
    for case in cards.common_cases():
        check(cards, case, card, dtype)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_every_kernel_fits_every_card(cards: ModuleType, capability: int) -> None:
    (card,) = (card for card in cards.CARDS if card.capability == capability)
    for case in cards.all_cases():
        for dtype in card.dtypes if case.is_half else card.dtypes[:1]:
            check(cards, case, card, dtype)


def test_all_cards_are_compiled_for(cards: ModuleType) -> None:
    assert tuple(card.capability for card in cards.CARDS) == CAPABILITIES


def test_no_kernel_is_left_out(cards: ModuleType) -> None:
    """Every JIT function with program_id in it is launched by a common case."""
    written = set()
    for path in (ROOT / "t2t/ops/kernels").glob("*.py"):
        for function in path.read_text().split("\n@triton.jit")[1:]:
            if "_ptr" in function.partition(":\n")[0] and "program_id" in function:
                written.add(function.partition("def ")[2].partition("(")[0])
    launched = {
        launch.kernel.fn.__name__
        for case in cards.common_cases()
        for launch in cards.launches(case, torch.float16)
    }
    assert launched == written
