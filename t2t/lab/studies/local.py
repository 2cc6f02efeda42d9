"""Neighbours in a T2T-ViT: convolutions, rows and columns, a pyramid; and photographs.

The studies of photographs are for Imagewoof at 128 px. All but one ask again what the
paper and CIFAR-10 have answered.
"""

from dataclasses import replace

from t2t.lab.studies.networks import SAME_RECIPE
from t2t.lab.studies.paper import base, depth, tokens
from t2t.lab.studies.study import Claim, Study, variation
from t2t.models.zoo import CONFIGS
from t2t.recipes.photos import imagewoof
from t2t.training.recipe import Recipe, TokenDropping

PHOTO_EPOCHS = 20
PYRAMID_KEYS = (
    "dim",
    "depth",
    "num_heads",
    "mlp_ratio",
    "splits",
    "mlp",
    "wiring",
    "pyramid_stages",
)
HYBRIDS = (
    "Hybrids with depthwise convolutions in the MLP and overlapping tokens reach 85.68 "
    "% on CIFAR-100 from scratch (DHVT, 22.8 M parameters, 300 epochs); no single "
    "choice has a published result on these images."
)
QUESTION = "Do convolutions, axial attention or a pyramid of tokens help a T2T-ViT?"


def photo_base() -> Recipe:
    """The recipe for Imagewoof that all arms vary, with all tokens."""
    return replace(
        imagewoof(PHOTO_EPOCHS),
        name="photos",
        evaluate_every=PHOTO_EPOCHS,
        token_dropping=TokenDropping(keep=1.0),
    )


def arms_of(plain: Recipe, pyramid: dict[str, object]) -> dict[str, Recipe]:
    """The same backbone with each choice, and a pyramid of about its size."""
    both = {**pyramid, "mlp": "depthwise"}
    return {
        "plain": plain,
        "depthwise": variation(plain, "depthwise", mlp="depthwise"),
        "conv_attention": variation(plain, "conv_attention", mixer="conv_attention"),
        "axial": variation(plain, "axial", mixer="axial"),
        "pyramid": variation(plain, "pyramid", **{**pyramid, "mlp": "mlp"}),
        "pyramid_depthwise": variation(plain, "pyramid_depthwise", **both),
    }


def local() -> Study:
    """Depthwise convolutions, axial attention and pyramids on CIFAR-10.

    t2t study local --data path/to/cifar10
    """
    pyramid = {
        "wiring": "pyramid",
        "dim": 96,
        "num_heads": 3,
        "mlp_ratio": 2,
        "depth": 10,
        "pyramid_stages": (3, 6, 1),
    }
    return Study(
        name="local",
        question=QUESTION,
        paper=HYBRIDS,
        arms=arms_of(base(), pyramid),
        notes="Convolutions add 1 % to parameters and MACs; axial attention needs 17 % "
        "fewer MACs. The pyramids have 16×16, 8×8 and 4×4 tokens of width 96, 192 and "
        "384: 6 % more parameters than `plain`, a quarter of its MACs.",
        against_cost=True,
    )


def photo_local() -> Study:
    """The same choices on photographs at 128 px.

    t2t study photo_local --data path/to/imagewoof-160
    """
    config = CONFIGS["t2t_pyramid_base"]
    pyramid = {name: getattr(config, name) for name in PYRAMID_KEYS}
    return Study(
        name="photo_local",
        question=QUESTION,
        paper=HYBRIDS,
        arms=arms_of(photo_base(), pyramid),
        notes="All with at most 22 M parameters. `plain` has 16×16 tokens of width "
        "384; the pyramids are `t2t_pyramid_base` with attention in every stage: "
        "32×32 tokens of width 64 to 4×4 of width 512, and 30 % of the MACs.",
        against_cost=True,
    )


def photo_tokens() -> Study:
    """T2T tokens against hard patches of 8×8 pixels, on photographs at 128 px.

    t2t study photo_tokens --data path/to/imagewoof-160
    """
    patches = {"tokenizer": "patch", "patch_size": 8}
    on_cifar = tokens()
    return replace(
        on_cifar,
        name="photo_tokens",
        question="Do soft, overlapping T2T tokens beat hard patches on photographs?",
        arms={
            "t2t": photo_base(),
            "patches": variation(photo_base(), "patches", **patches),
        },
        claims=tuple(each for each in on_cifar.claims if each.second == "patches"),
        notes="256 tokens either way, and the same backbone, as in the paper.",
    )


def photo_depth() -> Study:
    """Fourteen narrow blocks against four wide ones, on photographs at 128 px.

    t2t study photo_depth --data path/to/imagewoof-160
    """
    wide = {"dim": 768, "depth": 4, "num_heads": 12}
    return replace(
        depth(),
        name="photo_depth",
        question="Does deep and narrow beat shallow and wide on photographs?",
        arms={
            "deep_narrow": photo_base(),
            "shallow_wide": variation(photo_base(), "shallow_wide", **wide),
        },
        notes="The published pair at 128 px, with 16×16 tokens.",
    )


def photo_networks() -> Study:
    """T2T-ViT, a pyramid, DeiT and ResNets on photographs at 128 px, one recipe.

    t2t study photo_networks --data path/to/imagewoof-160
    """
    models: dict[str, tuple[str, dict[str, object]]] = {
        "pyramid": ("t2t_pyramid_base", {}),
        "deit_small_8": ("deit_small", {"patch_size": 8}),
        "deit_small_16": ("deit_small", {}),
        "resnet18": ("resnet18", {}),
        "resnet50": ("resnet50", {}),
    }
    others = {
        name: replace(
            photo_base(),
            name=f"photos.networks.{name}",
            model=model,
            model_args=model_args,
        )
        for name, (model, model_args) in models.items()
    }
    published = {"deit_small_8": 79.9, "deit_small_16": 79.9, "resnet50": 79.1}
    return Study(
        name="photo_networks",
        question="How do T2T-ViT and a pyramid compare with DeiT and CNNs on "
        "photographs?",
        paper="On ImageNet T2T-ViT-14 (81.5 %) leads DeiT-small (79.9) and ResNet-50 "
        "by the same recipe (79.1).",
        arms={"t2t_vit": photo_base(), **others},
        claims=tuple(
            Claim("t2t_vit", name, SAME_RECIPE, (81.5, top1))
            for name, top1 in published.items()
        ),
        notes="Muon steps the filters of convolutions as it steps matrices. "
        "`deit_small_8` has as many tokens as `t2t_vit`, `deit_small_16` a quarter.",
        against_cost=True,
    )
