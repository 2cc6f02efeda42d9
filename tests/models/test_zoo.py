"""Every row of the zoo says the truth about its model and the paper."""

import pytest
import timm
import torch
from torch import nn

from t2t.analysis.meter import macs_by_module
from t2t.models.create import create_model
from t2t.models.zoo import CONFIGS, ZOO

# name: trainable parameters, GMACs, as counted on the published implementation.
PUBLISHED = {
    "t2t_vit_7": (4_255_694, 1.156),
    "t2t_vit_10": (5_834_702, 1.527),
    "t2t_vit_12": (6_887_374, 1.775),
    "t2t_vit_14": (21_465_806, 4.800),
    "t2t_vit_14_384": (21_465_806, 16.419),
    "t2t_vit_19": (39_085_070, 8.503),
    "t2t_vit_24": (64_000_974, 13.692),
    "t2t_vit_t_14": (21_465_422, 6.106),
    "t2t_vit_t_19": (39_084_686, 9.808),
    "t2t_vit_t_24": (64_000_590, 14.998),
    "t2t_vit_14_resnext": (21_465_806, 4.800),
    "t2t_vit_14_wide": (25_000_910, 5.242),
    "t2t_vit_14_se": (21_723_854, 4.801),
    "t2t_vit_16_ghost": (16_173_518, 3.820),
    "t2t_vit_dense": (23_617_750, 5.296),
}
# Rows whose rounded figures in the papers no count of the model gives.
PAPER_DIFFERS = {
    "t2t_vit_7_distilled",  # stated without the second head
    "t2t_vit_12_distilled",
    "t2t_vit_14_patch",
    "mobilenet_v2_14",
}


@pytest.mark.parametrize("name", ZOO)
def test_row_states_what_is_counted(name: str) -> None:
    entry = ZOO[name]
    with torch.device("meta"):
        model = create_model(name)
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert trainable == entry.parameters
    macs = macs_by_module(model, (3, *entry.image_size))
    assert round(sum(item.total() for item in macs.values()) / 1e9, 3) == entry.gmacs


@pytest.mark.parametrize("name", PUBLISHED)
def test_row_agrees_with_the_published_model(name: str) -> None:
    parameters, gmacs = PUBLISHED[name]
    assert ZOO[name].parameters == parameters
    assert ZOO[name].gmacs == pytest.approx(gmacs, rel=0.005)


@pytest.mark.parametrize("name", [name for name in ZOO if ZOO[name].paper])
def test_row_agrees_with_the_papers_rounded_figures(name: str) -> None:
    entry = ZOO[name]
    assert entry.paper is not None
    agrees = entry.parameters / 1e6 == pytest.approx(entry.paper.params, rel=0.02)
    if entry.paper.macs is not None:
        agrees &= entry.gmacs == pytest.approx(entry.paper.macs, rel=0.055, abs=0.06)
    assert agrees != (name in PAPER_DIFFERS)


# Baselines, and what timm calls the same network.
SOURCES = {
    "vit_base_16": "vit_base_patch16_224",
    "vit_large_16": "vit_large_patch16_224",
    "vit_huge_14": "vit_huge_patch14_224",
    "deit_tiny": "deit_tiny_patch16_224",
    "deit_small": "deit_small_patch16_224",
    "deit_base": "deit_base_patch16_224",
    "deit_tiny_distilled": "deit_tiny_distilled_patch16_224",
    "deit_small_distilled": "deit_small_distilled_patch16_224",
    "deit_base_distilled": "deit_base_distilled_patch16_224",
}


def settings(model: nn.Module) -> dict[str, set[object]]:
    """What a model's weights do not tell: epsilons, heads, scales, activations."""
    attentions = [each for each in model.modules() if hasattr(each, "num_heads")]
    attentions = [each for each in attentions if hasattr(each, "qkv")]
    return {
        "eps": {each.eps for each in model.modules() if isinstance(each, nn.LayerNorm)},
        "heads": {each.num_heads for each in attentions},
        "scale": {each.scale for each in attentions},
        "bias": {each.qkv.bias is not None for each in attentions},
        "gelu": {e.approximate for e in model.modules() if isinstance(e, nn.GELU)},
    }


@pytest.mark.parametrize("name", SOURCES)
def test_baseline_has_the_settings_of_its_source(name: str) -> None:
    with torch.device("meta"):
        ours, source = create_model(name), timm.create_model(SOURCES[name])
    assert settings(ours) == settings(source)
    sizes = [sorted(tuple(p.squeeze().shape) for p in m.blocks[0].parameters())
             for m in (ours.encoder, source)]  # fmt: skip
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(
    "name", ["vit_small_16", "vit_small_16_linformer", "vit_small_resnet26d"]
)
def test_the_small_vit_is_that_of_the_paper(name: str) -> None:
    with torch.device("meta"):
        model = create_model(name)
    assert settings(model) == {
        "eps": {1e-5},
        "heads": {8},
        "scale": {96**-0.5},
        "bias": {False},
        "gelu": {"none"},
    }


def test_the_reference_family_has_torchs_epsilon() -> None:
    assert {CONFIGS[name].norm_eps for name in PUBLISHED} == {1e-5}


def test_stochastic_depth_of_dense_wiring_is_linear_over_its_blocks() -> None:
    with torch.device("meta"):
        model = create_model("t2t_vit_dense", drop_path=0.1)
    rates = [block.drop_path.rate for block in model.encoder.blocks]
    assert rates == pytest.approx([0.1 * layer / 18 for layer in range(19)])
