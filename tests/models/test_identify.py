"""Which model bare weights belong to."""

import pytest
import torch

import t2t
from t2t.errors import UserError
from t2t.models.reading.identify import identify
from t2t.models.reading.published import POSITIONS
from t2t.models.weights import load_with_report
from t2t.models.zoo import ZOO


def shapes(name: str) -> dict[str, torch.Tensor]:
    """The tensors of a model of the zoo, without values."""
    with torch.device("meta"):
        return dict(t2t.create_model(name).state_dict())


@pytest.mark.parametrize(
    "name",
    [
        "t2t_vit_7",
        "t2t_vit_7_distilled",
        "t2t_vit_t_14",
        "t2t_vit_16_ghost",
        "deit_tiny",
    ],
)
def test_a_bare_file_is_known_by_its_shapes(name):
    assert identify(shapes(name), "weights.pth", "file") == (name, ZOO[name].config, "")


def test_a_file_with_nothing_but_weights_loads(tmp_path):
    weights = {
        key: torch.zeros(value.shape) for key, value in shapes("t2t_vit_7").items()
    }
    torch.save(weights, tmp_path / "weights.pth")
    model, loaded = load_with_report(tmp_path / "weights.pth")
    assert model.config == ZOO["t2t_vit_7"].config
    assert (loaded.name, loaded.notes) == ("t2t_vit_7", ())


def test_of_two_models_with_the_same_shapes_the_hint_decides():
    state = shapes("t2t_vit_14")
    state[POSITIONS] = torch.empty(1 + 24 * 24, 384, device="meta")
    name, found, note = identify(state, "81.5_T2T_ViT_14.pth.tar", "file")
    assert (name, found.num_heads, note) == ("t2t_vit_14", 6, "")
    assert found.image_size == (384, 384)
    name, found, note = identify(state, "T2t_vit_14_resnext a.pth", "file")
    assert (name, found.num_heads, note) == ("t2t_vit_14_resnext", 32, "")
    name, found, note = identify(state, "weights.pth", "file")
    assert (name, found.num_heads) == ("t2t_vit_14_384", 6)
    assert "t2t_vit_14_resnext" in note
    assert "t2t_vit_14," not in note


def test_shapes_that_no_model_has_are_described():
    state = shapes("t2t_vit_7")
    del state["norm.bias"]
    with pytest.raises(UserError, match="7 blocks of width 256, and no model"):
        identify(state, "weights.pth", "file")
