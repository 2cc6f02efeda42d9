"""A head stays where its classes are the data's, by name."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from t2t.errors import UserError
from t2t.models.checkpoint_io.heads import Classes, outputs_for
from t2t.models.class_names import imagenet_classes, readable_names
from t2t.models.config import ModelConfig
from t2t.models.vit import VisionTransformer
from t2t.models.weights import load, load_weights, load_with_report, save

SMALL = ModelConfig(
    dim=16,
    depth=1,
    num_heads=1,
    mlp_ratio=1,
    token_dim=8,
    num_classes=3,
    image_size=(16, 16),
)
NAMES = ("bird", "cat", "dog")


@pytest.fixture
def saved(tmp_path: Path) -> VisionTransformer:
    torch.manual_seed(0)
    model = VisionTransformer(SMALL)
    torch.nn.init.normal_(model.head.bias)
    save(model, tmp_path, class_names=NAMES)
    return model


def test_other_classes_of_the_same_number_get_a_fresh_head(
    saved, tmp_path: Path
) -> None:
    model = VisionTransformer(SMALL)
    own = model.head.weight.clone()
    loaded = load_weights(model, tmp_path, class_names=["apple", "bread", "cat"])
    assert torch.equal(model.head.weight, own)
    assert torch.equal(model.norm.weight, saved.norm.weight)
    (note,) = loaded.notes
    assert note == (
        "The head was replaced by a new one: its 3 classes ('bird', 'cat', 'dog') "
        "are not the data's 3 ('apple', 'bread', 'cat')."
    )
    taken, all_of_them = loaded.num_tensors
    assert taken == all_of_them - 2
    assert f": {taken} of {all_of_them} tensors. The head was replaced" in str(loaded)


def test_the_same_classes_keep_the_head(saved, tmp_path: Path) -> None:
    model = VisionTransformer(SMALL)
    loaded = load_weights(model, tmp_path, class_names=NAMES)
    assert torch.equal(model.head.weight, saved.head.weight)
    assert loaded.notes == ()
    assert loaded.kept == (
        "The head was kept: its 3 classes are the data's ('bird', 'cat', 'dog').",
    )
    assert "all" in str(loaded)
    assert loaded.kept[0] in str(loaded)


def test_another_order_moves_the_outputs(saved, tmp_path: Path) -> None:
    model, loaded = load_with_report(tmp_path, class_names=["dog", "bird", "cat"])
    assert torch.equal(model.head.weight, saved.head.weight[[2, 0, 1]])
    assert torch.equal(model.head.bias, saved.head.bias[[2, 0, 1]])
    (note,) = loaded.notes
    assert "kept, its outputs reordered to the data's classes" in note


def test_both_heads_of_a_distilled_model_follow(tmp_path: Path) -> None:
    config = replace(SMALL, distilled=True)
    model = VisionTransformer(config)
    save(model, tmp_path, class_names=NAMES)
    other, loaded = load_with_report(tmp_path, class_names=NAMES[::-1])
    for head in ("head", "distillation_head"):
        ours, theirs = getattr(other, head).weight, getattr(model, head).weight
        assert torch.equal(ours, theirs.flip(0))
    assert len(loaded.notes) == 2


def test_without_names_the_number_of_classes_decides_and_is_reported(
    saved, tmp_path: Path
) -> None:
    model, loaded = load_with_report(tmp_path, num_classes=3)
    assert torch.equal(model.head.weight, saved.head.weight)
    assert loaded.kept == (
        "The head was kept: its 3 classes ('bird', 'cat', 'dog') match the "
        "model's number.",
    )


def test_names_and_their_number_must_agree(saved, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match="3 class_names were given, but the model has 4"
    ):
        load(tmp_path, num_classes=4, class_names=NAMES)
    with pytest.raises(UserError, match="is a string; pass a list"):
        load(tmp_path, class_names="cat")


def test_a_file_without_names_cannot_agree(tmp_path: Path) -> None:
    model = VisionTransformer(SMALL)
    save(model, tmp_path)
    other, loaded = load_with_report(tmp_path, class_names=NAMES)
    assert not torch.equal(other.head.weight, model.head.weight)
    assert "the file does not name its 3 classes" in loaded.notes[0]


IMAGENET = imagenet_classes()


@pytest.mark.parametrize(
    ("known", "wanted", "kept"),
    [
        ((), IMAGENET, True),  # a published file on ImageNet's folders
        ((), readable_names(IMAGENET), True),
        (IMAGENET, tuple(map(str, range(1000))), True),  # shards have numbers only
        ((), tuple(map(str, range(1000))), True),
        ((), tuple(f"mushroom {number}" for number in range(1000)), False),
        (("one name too few",) * 999, IMAGENET, True),
        (tuple(f"fungus {number}" for number in range(1000)), IMAGENET, False),
    ],
)
def test_a_thousand_classes_without_names_are_imagenets(known, wanted, kept) -> None:
    order, reason = outputs_for(Classes(known, wanted), 1000)
    assert (order == [*range(1000)]) is kept
    assert "ImageNet's" in reason or known
    assert (order is not None) is kept


def test_numbered_data_is_not_taken_for_named_classes() -> None:
    numbers = tuple(map(str, range(3)))
    assert outputs_for(Classes(NAMES, numbers), 3)[0] is None
    assert outputs_for(Classes(numbers, numbers), 3)[0] == [0, 1, 2]
