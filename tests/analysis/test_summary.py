"""The tree of a model's parts."""

from pathlib import Path

import pytest

import t2t
from t2t.analysis.summary import Branch, merged, part_tree, summarise, walk
from t2t.errors import UserError


def costs(branch: Branch) -> list[tuple[int, int]]:
    """Parameters and multiplications of what a branch holds."""
    return [(inner.part.parameters, inner.part.macs) for inner in branch.inside]


def activations(branch: Branch) -> list[int]:
    """Bytes of all branches at each depth."""
    level, found = [branch], []
    while level:
        found.append(sum(each.part.activation_bytes for each in level))
        level = [inner for each in level for inner in each.inside]
    return found


@pytest.mark.parametrize(
    ("name", "model_args"),
    [
        # Of two blocks, one alone holds what drops it.
        ("resnet18_32", {"drop_path": 0.1}),
        # Of blocks that cost the same, some hold qkv and some q and kv.
        ("twins_svt_small", {}),
        ("t2t_vit_dense", {"drop_path": 0.1}),
        # All of its blocks are alike.
        ("t2t_vit_7", {}),
    ],
)
def test_siblings_are_merged_where_they_hold_the_same(
    name: str, model_args: dict[str, float]
) -> None:
    page = summarise(name, model_args)
    apart = part_tree(page.cost.parts)
    tree = merged(apart)
    assert activations(tree) == activations(apart)
    for _, branch in walk(tree, depth=9):
        assert not branch.is_free
        if branch.inside:
            parameters, macs = map(sum, zip(*costs(branch), strict=True))
            assert parameters == branch.part.parameters
            assert macs <= branch.part.macs


def test_a_trained_model_is_named_with_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_args = {"depth": 2, "positions": "relative", "image_size": (16, 24)}
    model = t2t.create_model("t2t_vit_7_32", **model_args)
    path = str(t2t.save(model, tmp_path, name="t2t_vit_7_32"))
    t2t.save(model, tmp_path / "gift/mine.safetensors", name="t2t_vit_7_32")
    monkeypatch.chdir(tmp_path)  # where files and folders are named without a slash
    for place in (path, str(tmp_path), Path(path).name, "gift"):
        page = summarise(place, {"num_classes": 3})
        assert page.name == "t2t_vit_7_32"
        assert page.model_args == {**model_args, "num_classes": 3}
        assert page.cost.image_size == (16, 24)
    timms = t2t.create_model("resnet18", num_classes=2)
    t2t.save(timms, tmp_path / "timm", extra={"image_size": (48, 64)})
    page = summarise(str(tmp_path / "timm"), {})
    assert (page.name, page.cost.image_size) == ("resnet18", (48, 64))
    path = str(t2t.save(model, tmp_path / "nameless.safetensors"))
    with pytest.raises(UserError, match="does not name its model"):
        summarise(path, {})
