"""The plain path that speed is measured by computes what ours does."""

from types import FunctionType

import pytest
import torch

from t2t.errors import UserError
from t2t.lab.bench.alternating import a_photo, compare, our_path, plain_path
from t2t.lab.bench.as_published import AsPublished
from t2t.models.create import create_model


@pytest.mark.parametrize("tokenizer", ["t2t", "t2t_performer"])
def test_the_plain_path_gives_the_same_logits(tokenizer: str) -> None:
    torch.manual_seed(0)
    model = create_model(
        "t2t_vit_7",
        tokenizer=tokenizer,
        image_size=(48, 64),
        dim=32,
        depth=2,
        num_heads=2,
        num_classes=10,
    ).eval()
    torch.nn.init.normal_(model.head.weight)
    images = torch.randn(2, 3, 48, 64)
    with torch.inference_mode():
        ours, plain = model(images), AsPublished(model)(images)
    assert ours.abs().max() > 1
    torch.testing.assert_close(plain, ours, atol=1e-4, rtol=1e-4)


def test_both_paths_see_the_same_in_a_photo() -> None:
    torch.manual_seed(0)
    model = create_model("t2t_vit_7", image_size=64, depth=1, num_classes=20)
    torch.nn.init.normal_(model.head.weight)
    photo = a_photo()
    plain = plain_path(model)(photo)
    ours = our_path(model, "small")(photo)
    assert list(ours) == list(plain)
    assert list(ours.values()) == pytest.approx(list(plain.values()), rel=1e-2)


def test_a_comparison_says_how_many_times_as_fast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []

    def seconds_of(path: FunctionType, photo: bytes) -> float:
        order.append(path.__qualname__.partition(".")[0])
        if len(order) <= 6:  # three rounds that warm up
            return 1.0
        return {"our_path": 0.01, "plain_path": 0.03}[order[-1]]

    monkeypatch.setattr("t2t.lab.bench.alternating.seconds_of", seconds_of)
    comparison = compare("t2t_vit_7", rounds=2, num_threads=1)
    assert comparison.ratio == 3
    assert comparison.milliseconds_as_published == 30
    assert (comparison.milliseconds, comparison.spread) == (10, (3, 3))
    assert comparison.largest_difference < 1e-2
    assert order[-4:] == ["plain_path", "our_path", "our_path", "plain_path"]


@pytest.mark.parametrize("name", ["deit_small_patch16_224", "t2t_vit_14_se"])
def test_what_the_paper_does_not_have_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="plain path"):
        compare(name)
