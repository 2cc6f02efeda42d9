"""Every model by name: a row holds its slots, its size and the published figures."""

from dataclasses import dataclass, replace

from t2t.models.config import ModelConfig, Size


@dataclass(frozen=True)
class Paper:
    """What a paper states: parameters in millions, MACs in billions, ImageNet top-1."""

    params: float
    macs: float | None = None
    top1: float | None = None


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One model: how to build it, what it costs and what was published of it."""

    about: str
    config: ModelConfig | None = None
    """None for a network that timm builds."""
    timm_name: str = ""
    parameters: int
    """Trainable parameters, to the digit; a test counts them."""
    gmacs: float
    """Multiplications of one image in 1e9; a test counts them."""
    image_size: Size = (224, 224)
    paper: Paper | None = None


def t2t_vit(dim: int, depth: int, num_heads: int, mlp_ratio: float) -> ModelConfig:
    """A published T2T-ViT: Performer tokens with their dropout, sinusoid positions."""
    return ModelConfig(
        dim=dim,
        depth=depth,
        num_heads=num_heads,
        mlp_ratio=mlp_ratio,
        token_dropout=0.1,
    )


def softmax_tokens(config: ModelConfig) -> ModelConfig:
    """The `_t` form: softmax attention among the split tokens."""
    return replace(config, tokenizer="t2t", token_dropout=0.0)


def vit(dim: int, depth: int, num_heads: int, mlp_ratio: float = 4) -> ModelConfig:
    """A plain ViT: hard patches, learned positions, biases everywhere."""
    return ModelConfig(
        dim=dim,
        depth=depth,
        num_heads=num_heads,
        mlp_ratio=mlp_ratio,
        tokenizer="patch",
        positions="learned_1d",
        qkv_bias=True,
        norm_eps=1e-6,
    )


def small_images(config: ModelConfig, side: int) -> ModelConfig:
    """Splits that leave 16×16 tokens of images of 32 or 64 pixels, read by their mean."""
    first_stride = {32: 1, 64: 2}[side]
    return replace(
        config,
        splits=((3, first_stride, 1), (3, 2, 1), (3, 1, 1)),
        positions="learned_1d",
        class_token=False,
        pool="mean",
        image_size=(side, side),
        num_classes=10 if side == 32 else 200,
    )


T2T_7 = t2t_vit(256, 7, 4, 2)
T2T_10 = t2t_vit(256, 10, 4, 2)
T2T_12 = t2t_vit(256, 12, 4, 2)
T2T_14 = t2t_vit(384, 14, 6, 3)
T2T_19 = t2t_vit(448, 19, 7, 3)
T2T_24 = t2t_vit(512, 24, 8, 3)
VIT_S = replace(vit(768, 8, 8, 3), qkv_bias=False)
VIT_B = vit(768, 12, 12)
DEIT_T = vit(192, 12, 3)
DEIT_S = vit(384, 12, 6)

ZOO: dict[str, Entry] = {}
