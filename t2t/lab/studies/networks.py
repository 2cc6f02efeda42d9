"""Networks of several kinds under one recipe, at the images' own 32 pixels."""

from dataclasses import replace
from typing import Any

from t2t.lab.studies.paper import TRANSFERS, base
from t2t.lab.studies.study import Claim, Study
from t2t.training.recipe import Recipe

SAME_RECIPE = "T2T-ViT, Tables 2 to 4, ImageNet"

# Transformers of about 4 M parameters and 1.2 G MACs on 256 tokens, and CNNs at their
# published widths without their first strides (models/timm_support/small_cnns.py).
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "t2t_vit": ("t2t_vit_7_32", {"token_dropout": 0.0}),
    "vit": ("vit_small_16", {"patch_size": 2, "dim": 320, "depth": 4, "num_heads": 5}),
    "deit": ("deit_tiny", {"patch_size": 2, "depth": 9}),
    "convolution_tokens": (
        "t2t_vit_7_32",
        {"tokenizer": "t2t_conv", "splits": ((3, 2, 1),)},
    ),
    "resnet18": ("resnet18_32", {}),
    "resnet50": ("resnet50_32", {}),
    "mobilenet_v2": ("mobilenetv2_32", {}),
}


def arm(name: str) -> Recipe:
    """The shared recipe with one network in it."""
    model, model_args = MODELS[name]
    return replace(
        base(), name=f"cifar10.networks.{name}", model=model, model_args=model_args
    )


def networks() -> Study:
    """T2T-ViT, ViT, DeiT, convolution tokens, ResNets and MobileNetV2, one recipe.

    t2t study networks --data path/to/cifar10
    """
    published = {
        "vit": (81.5, 78.1, TRANSFERS),
        "deit": (81.5, 79.9, SAME_RECIPE),
        "resnet50": (81.5, 79.1, TRANSFERS),
        "mobilenet_v2": (71.7, 72.8, SAME_RECIPE),
    }
    return Study(
        name="networks",
        question="How does T2T-ViT compare with ViT, DeiT and CNNs under one recipe?",
        paper="On ImageNet T2T-ViT-14 (81.5 %) leads ViT-S/16 (78.1), DeiT-small "
        "(79.9) and ResNet-50 by the same recipe (79.1); T2T-ViT-7 (71.7) comes close "
        "to MobileNetV2 (72.8).",
        arms={name: arm(name) for name in MODELS},
        claims=tuple(
            Claim("t2t_vit", name, where, (ours, theirs))
            for name, (ours, theirs, where) in published.items()
        ),
        notes="Muon steps the filters of convolutions as it steps matrices; its rate "
        "was chosen for T2T-ViT. All transformers have 256 tokens and learned "
        "positions. `vit` is shallow and wide as ViT-S/16 is, `deit` deep and narrow "
        "as DeiT-tiny; `convolution_tokens` has one 3×3 convolution of stride 2 before "
        "T2T-ViT's backbone, where CCT has a convolution, ReLU and pooling, and a mean "
        "in place of CCT's weighted one. The CNNs are timm's with a first layer for "
        "32 px (docs/studies.md).",
        against_cost=True,
    )
