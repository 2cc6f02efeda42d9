"""What a run does on its device by default."""

import pytest
import torch

from t2t.training.runtime import default_precision


@pytest.mark.parametrize(
    ("device", "capability", "precision"),
    [
        ("cpu", None, "fp32"),
        ("cuda", (7, 5), "fp16"),  # emulates bf16
        ("cuda", (8, 0), "bf16"),
        ("cuda", (9, 0), "bf16"),
    ],
)
def test_the_precision_is_one_that_the_device_computes_in(
    device: str,
    capability: tuple[int, int] | None,
    precision: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    assert default_precision(torch.device(device)) == precision
