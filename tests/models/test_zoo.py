"""Every row of the zoo says the truth about its model and the paper."""

import pytest
import torch

from t2t.analysis.meter import macs_by_module
from t2t.models.create import create_model
from t2t.models.zoo import ZOO

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
