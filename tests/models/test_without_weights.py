"""Models without weights are built without importing torch's compiler."""

import subprocess
import sys

import pytest
import torch

from t2t.models.create import create_model
from t2t.models.without_weights import without_weights

SCRIPT = """
import sys
from t2t.models.create import create_model
from t2t.models.without_weights import without_weights
with without_weights():
    for name in sys.argv[1:]:
        create_model(name, num_classes=10)
print([name for name in ("sympy", "torch._dynamo") if name in sys.modules])
"""


def test_nothing_slow_is_imported() -> None:
    names = ("t2t_vit_7_32", "t2t_pyramid_tiny", "t2t_vit_dense", "deit_tiny_distilled")
    found = subprocess.run(
        [sys.executable, "-c", SCRIPT, *names],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["t2t_vit_7_32", "resnet18_32"])
def test_weights_have_the_shapes_of_a_model_with_values(name: str) -> None:
    with without_weights():
        model = create_model(name, num_classes=10)
    wanted = create_model(name, num_classes=10).state_dict()
    found = model.state_dict()
    assert {key: each.shape for key, each in found.items()} == {
        key: each.shape for key, each in wanted.items()
    }
    assert all(each.is_meta for each in model.parameters())


def test_values_are_drawn_outside_and_on_other_devices() -> None:
    with without_weights():
        drawn = torch.zeros(1000, device="cpu").normal_()
    assert drawn.std() > 0.5
    assert torch.zeros(1000).normal_().std() > 0.5
