"""Studies of the T2T-ViT paper's findings on small images.

All start from the same recipe and epochs, so the arm they share is trained once.
"""

from dataclasses import replace

from t2t.lab.studies.study import Claim, Study, variation
from t2t.recipes.cifar10 import sprint
from t2t.training.recipe import Recipe, TokenDropping

EPOCHS = 10
ABLATION = "T2T-ViT, Table 7, ImageNet"
TRANSFERS = "T2T-ViT, Table 6, ImageNet"
POSITIONS = "ViT, Table 8, ImageNet 5-shot"


def base() -> Recipe:
    """The CIFAR-10 recipe that all arms vary, without token dropping."""
    return replace(
        sprint(),
        epochs=EPOCHS,
        evaluate_every=EPOCHS,
        token_dropping=TokenDropping(keep=1.0),
    )


def tokens() -> Study:
    """T2T tokens against hard patches of 2×2 pixels: 256 tokens either way.

    t2t study tokens --data path/to/cifar10
    """
    patches = {"tokenizer": "patch", "patch_size": 2}
    return Study(
        name="tokens",
        question="Do soft, overlapping T2T tokens beat hard patches?",
        paper="Without the T2T module T2T-ViT-14 falls from 81.5 to 79.5 % on "
        "ImageNet, at 0.4 M parameters and 0.6 G MACs less.",
        arms={
            "t2t": base(),
            "patches": variation(base(), "patches", **patches),
            "patches_deeper": variation(base(), "patches_deeper", depth=8, **patches),
        },
        claims=(
            Claim("t2t", "patches", ABLATION, (81.5, 79.5)),
            Claim("t2t", "patches_deeper", ABLATION, (81.5, 79.5)),
        ),
        notes="`patches` keeps the backbone, as the paper does, and has 7 % fewer "
        "parameters and 8 % fewer MACs than `t2t`; `patches_deeper` has one block "
        "more, and so 6 % more of both.",
    )


def token_transformer() -> Study:
    """Between two soft splits: Performer, softmax or nothing.

    t2t study token_transformer --data path/to/cifar10
    """
    return Study(
        name="token_transformer",
        question="Which tokens: Performer, softmax or convolutions?",
        paper="On ImageNet, T2T-ViT-14 reaches 81.5 % with Performer, 81.7 % with "
        "softmax and 80.8 % with convolution tokens.",
        arms={
            "performer": base(),
            "softmax": variation(base(), "softmax", tokenizer="t2t"),
            "convolution": variation(base(), "convolution", tokenizer="t2t_conv"),
        },
        claims=(
            Claim("softmax", "performer", ABLATION, (81.7, 81.5)),
            Claim("convolution", "performer", ABLATION, (80.8, 81.5)),
        ),
        notes="The same splits and backbone; softmax costs 10 % more MACs, "
        "convolutions 4 % fewer.",
    )


def depth() -> Study:
    """Seven narrow blocks against two wide ones.

    t2t study depth --data path/to/cifar10
    """
    return Study(
        name="depth",
        question="Does deep and narrow beat shallow and wide?",
        paper="Four blocks of width 768 reach 78.8 % on ImageNet where fourteen of "
        "width 384 reach 81.5 %, with 16 % more parameters and 12 % more MACs.",
        arms={
            "deep_narrow": base(),
            "shallow_wide": variation(
                base(), "shallow_wide", dim=512, depth=2, num_heads=8
            ),
        },
        claims=(Claim("deep_narrow", "shallow_wide", ABLATION, (81.5, 78.8)),),
        notes="As in the paper the width is doubled and the depth divided by 3.5: "
        "17 % more parameters and 5 % more MACs.",
    )


def designs() -> Study:
    """Designs of CNNs in a T2T-ViT: SE, dense, more heads, ghost.

    t2t study designs --data path/to/cifar10
    """
    published = {"se": 81.6, "dense": 80.6, "more_heads": 81.5, "ghost": 79.5}
    return Study(
        name="designs",
        question="Which designs of CNNs help a T2T-ViT?",
        paper="On ImageNet, against 81.5 % for T2T-ViT-14: channel attention 81.6, "
        "more heads (ResNeXt) 81.5, dense connections 80.6, ghost operations 79.5 %.",
        arms={
            "plain": base(),
            "se": variation(base(), "se", mixer="attention_se"),
            "dense": variation(
                base(),
                "dense",
                wiring="dense",
                dim=128,
                depth=10,
                dense_stages=(2, 3, 3, 2),
                growth=64,
                num_heads=8,
            ),
            "more_heads": variation(base(), "more_heads", num_heads=16),
            "ghost": variation(base(), "ghost", mixer="ghost", mlp="ghost", depth=8),
        },
        claims=tuple(
            Claim(name, "plain", TRANSFERS, (top1, 81.5))
            for name, top1 in published.items()
        ),
        notes="`dense` has the published width, growth and heads in fewer blocks: 3 % "
        "fewer parameters, equal MACs. `more_heads` has heads of 16 channels (12 in "
        "the paper). `ghost` has 8 blocks for 7, as the published weights have 16 for "
        "14: 20 % fewer parameters, 13 % fewer MACs.",
    )


def head() -> Study:
    """The class token against the mean of all tokens.

    t2t study head --data path/to/cifar10
    """
    return Study(
        name="head",
        question="Should the head read a class token or the mean of the tokens?",
        paper="T2T-ViT reads a class token and reports no comparison; ViT's authors "
        "found that both do equally well once the learning rate is right.",
        arms={
            "mean": base(),
            "class_token": variation(
                base(), "class_token", class_token=True, pool="class"
            ),
        },
        claims=(Claim("class_token", "mean", "ViT, Figure 9, ImageNet"),),
        notes="One learning rate for both, which suits the mean: it was chosen for it.",
    )


def positions() -> Study:
    """No positions, sinusoids, learned tables, each in 1-D and 2-D, or relative ones.

    t2t study positions --data path/to/cifar10
    """
    names = {
        "1d": "learned_1d",
        "2d": "learned_2d",
        "none": "none",
        "sinusoid": "sinusoid",
    }
    published = {"none": 61.382, "2d": 64.001, "relative": 64.032}
    return Study(
        name="positions",
        question="Which positions do the tokens need?",
        paper="T2T-ViT uses sinusoids and reports no comparison. ViT-B/16, 5-shot, "
        "gets 61.4 % without positions and 64.2, 64.0 and 64.0 % with "
        "1-D, 2-D and relative ones.",
        arms={
            "sinusoid_2d": base(),
            **{
                arm: variation(base(), f"positions_{arm}", positions=choice)
                for arm, choice in names.items()
            },
            "relative": variation(
                base(),
                "positions_relative",
                positions="relative",
                positions_at="every_layer",
            ),
        },
        claims=tuple(
            Claim(arm, "1d", POSITIONS, (top1, 64.206))
            for arm, top1 in published.items()
        ),
        notes="Added before the first block, but for the relative ones, which are "
        "attention biases of every block.",
    )
