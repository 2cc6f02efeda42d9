"""Which model bare weights belong to."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import t2t
from t2t.errors import UserError
from t2t.models.checkpoint_io.checkpoints import read_checkpoint
from t2t.models.checkpoint_io.identify import identify
from t2t.models.checkpoint_io.published import POSITIONS
from t2t.models.weights import load_weights, load_with_report
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


@pytest.mark.parametrize(
    "hint",
    [
        "t2t_vit_14-resnext.pth.tar",
        "t2t_vit_14 (resnext).pth.tar",
        "T2T-ViT-14-ResNeXt.pth",
        "t2tvit14resnext.pth",
        "resnext_t2t_vit_14.pth",
        "81.1_T2T_ViT_14_Res-NeXt.safetensors",
    ],
)
def test_a_name_may_be_spelled_in_any_way(hint: str) -> None:
    name, found, note = identify(shapes("t2t_vit_14"), hint, "file")
    assert (name, found.num_heads, note) == ("t2t_vit_14_resnext", 32, "")


@pytest.mark.parametrize(
    ("hint", "name", "told"),
    [
        ("81.5_T2T_ViT_14.pth.tar", "t2t_vit_14", False),
        ("T2TViT14-best-b5f2ef4d.pth", "t2t_vit_14", False),
        ("t2t_vit_14-resnxt.pth.tar", "t2t_vit_14", True),  # not a word we know
        ("t2t_vit_14_32heads.pth.tar", "t2t_vit_14", True),
        ("model_best.pth.tar", "t2t_vit_14", True),
        ("t2t_vit_14 t2t_vit_14_resnext.pth.tar", "t2t_vit_14_resnext", True),
    ],
)
def test_what_a_name_does_not_decide_is_reported(
    hint: str, name: str, told: bool
) -> None:
    found, _, note = identify(shapes("t2t_vit_14"), hint, "file")
    assert found == name
    assert bool(note) == told
    if told:
        assert f"identified as {name}" in note
        assert "pass model=t2t_vit_14" in note


def test_the_folder_or_repository_of_a_file_names_it_too(tmp_path: Path) -> None:
    folder = tmp_path / "T2T-ViT-14-ResNeXt"
    folder.mkdir()
    save_file({"a": torch.zeros(1)}, folder / "model.safetensors")
    name, _, note = identify(shapes("t2t_vit_14"), read_checkpoint(folder).hint, "file")
    assert (name, note) == ("t2t_vit_14_resnext", "")


def test_a_resnext_put_into_another_model_is_reported(tmp_path: Path) -> None:
    model = t2t.create_model("t2t_vit_14_resnext")
    torch.save(model.state_dict(), tmp_path / "t2t_vit_14 (resnext).pth")
    other = t2t.create_model("t2t_vit_14")
    (note,) = load_weights(other, tmp_path / "t2t_vit_14 (resnext).pth").notes
    assert "num_heads=32 (here 6)" in note


def test_shapes_that_no_model_has_are_described():
    state = shapes("t2t_vit_7")
    del state["norm.bias"]
    with pytest.raises(UserError, match="7 blocks of width 256, and no model"):
        identify(state, "weights.pth", "file")
