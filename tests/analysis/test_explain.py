"""Evidence for a prediction: token maps, attention rollout, occlusion."""

from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import t2t
from t2t.analysis.attention_figure import ExplainedImage, draw_explanations
from t2t.analysis.explain import attention_rollout, explain
from t2t.analysis.occlusion import cell_edges, occlusion_map
from t2t.analysis.token_maps import pca_colours
from t2t.models.layers import SelfAttention

SMALL = {"dim": 16, "depth": 2, "num_heads": 2, "token_dim": 8, "num_classes": 3}


def small(name: str = "t2t_vit_7_32", **model_args: object) -> nn.Module:
    torch.manual_seed(0)
    return t2t.create_model(name, **{**SMALL, **model_args}).eval()


def test_uniform_attention_gives_a_uniform_map() -> None:
    model = small()
    for part in model.modules():
        if isinstance(part, SelfAttention):
            nn.init.zeros_(part.qkv.weight)
    found = attention_rollout(model, torch.randn(1, 3, 32, 32))
    torch.testing.assert_close(found, torch.ones(16, 16))


@pytest.mark.parametrize("pool", ["mean", "class"])
def test_attention_finds_the_token_that_all_look_at(pool: str) -> None:
    model = small(
        "vit_small_16", patch_size=8, image_size=32, class_token=True, pool=pool
    )
    images = torch.randn(1, 3, 32, 32)

    def stare(part: nn.Module, inputs: object, output: Tensor) -> Tensor:
        # Keys but the seventh are orthogonal to all queries.
        query, key, value = output.chunk(3, -1)
        key = torch.zeros_like(key)
        key[:, 7] = 50.0
        return torch.cat([torch.ones_like(query), key, value], -1)

    for part in model.modules():
        if isinstance(part, SelfAttention):
            part.qkv.register_forward_hook(stare)
    found = attention_rollout(model, images)
    assert found is not None
    assert found.shape == (4, 4)
    assert found.flatten().argmax() == 6  # behind the class token
    # Of two blocks each passes half of what it read on to that token.
    rest = {"class": 0.0, "mean": 0.25 / 16}[pool]
    share = (0.75 + rest) / (0.75 + 16 * rest)
    assert found.max().item() / 16 == pytest.approx(share, rel=1e-3)


def test_keys_that_are_mixed_have_no_places() -> None:
    model = small(mixer="linformer")
    assert attention_rollout(model, torch.randn(1, 3, 32, 32)) is None


class Corner(nn.Module):
    """Sees a class where the upper left quarter is bright."""

    def forward(self, images: Tensor) -> Tensor:
        quarter = images[:, :, : images.shape[2] // 2, : images.shape[3] // 2]
        bright = quarter.mean((1, 2, 3))
        return torch.stack([bright, -bright], 1)


@pytest.mark.parametrize("size", [(32, 32), (24, 40), (3, 5)])
def test_a_guess_needs_what_it_was_made_from(size: tuple[int, int]) -> None:
    needs = occlusion_map(Corner(), torch.ones(1, 3, *size), 0)
    assert needs.shape == (min(size[0], 8), min(size[1], 8))
    rows, columns = needs.shape
    assert (needs[: rows // 2, : columns // 2] > 0).all()
    assert needs[rows // 2 + 1 :].abs().max() < 1e-4
    assert needs[:, columns // 2 + 1 :].abs().max() < 1e-4
    against = occlusion_map(Corner(), torch.ones(1, 3, *size), 1)
    torch.testing.assert_close(against, -needs, atol=1e-4, rtol=0)


def test_a_label_of_several_loses_its_own_probability() -> None:
    class Doubled(Corner):
        def forward(self, images: Tensor) -> Tensor:
            return 2 * super().forward(images)

    image = torch.ones(1, 3, 16, 16)
    # The softmax of x and -x is the sigmoid of 2 x.
    needs = occlusion_map(Doubled(), image, 0, multilabel=True)
    torch.testing.assert_close(needs, occlusion_map(Corner(), image, 0))


def test_cells_cover_a_side() -> None:
    assert cell_edges(32) == [0, 4, 8, 12, 16, 20, 24, 28, 32]
    assert cell_edges(3) == [0, 1, 2, 3]


def test_tokens_alike_have_one_colour() -> None:
    tokens = torch.zeros(1, 8, 4, 6)
    tokens[:, 2, :, 3:] = 5.0
    found = pca_colours(tokens)
    assert found.shape == (4, 6, 3)
    assert found.min() >= 0
    assert found.max() <= 1
    assert torch.equal(found[:, :3], found[:1, :1].expand(4, 3, 3))
    assert torch.equal(found[:, 3:], found[:1, 3:4].expand(4, 3, 3))
    assert (found[0, 0, 0] - found[0, 3, 0]).abs() == 1
    assert pca_colours(torch.ones(1, 2, 1, 1)).isfinite().all()


@pytest.mark.parametrize(
    ("model", "stages"),
    [
        ("t2t_vit_7_32", [(32, 32), (16, 16), (16, 16), (16, 16)]),
        ("vit_small_16", [(2, 2), (2, 2)]),
    ],
)
def test_a_look_leaves_the_model_as_it_was(
    model: str, stages: list[tuple[int, int]], tmp_path: Path
) -> None:
    built = small(model, image_size=32)
    image = torch.randn(1, 3, 32, 32)
    before = built(image)
    explanation = explain(built, image, 1)
    assert [tuple(found.shape[:2]) for _, found in explanation.tokens] == stages
    assert explanation.attention is not None
    assert explanation.attention.mean() == pytest.approx(1)
    assert torch.equal(built(image), before)
    assert not any(part._forward_hooks for part in built.modules())
    seen = ExplainedImage(
        name="a $name$ of a picture.png",
        pixels=torch.zeros(1, 3, 32, 32, dtype=torch.uint8),
        class_name="cat",
        probability=0.9,
        explanation=explanation,
    )
    path = draw_explanations([seen, seen], tmp_path / "seen.png", "What it sees")
    with Image.open(path) as picture:
        assert picture.width > picture.height > 400


def test_a_network_of_timms_has_no_tokens_and_is_drawn_all_the_same(
    tmp_path: Path,
) -> None:
    network = t2t.create_model("resnet18_32", num_classes=3, in_channels=1).eval()
    explanation = explain(network, torch.randn(1, 1, 32, 32), 2)
    assert (explanation.tokens, explanation.attention) == ((), None)
    grey = torch.zeros(1, 1, 32, 32, dtype=torch.uint8)
    seen = ExplainedImage(
        name="7", pixels=grey, class_name="7", probability=1.0, explanation=explanation
    )
    assert draw_explanations([seen], tmp_path / "seen.svg", "").stat().st_size > 1000
