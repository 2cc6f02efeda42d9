"""All models by name, with their configs, costs and published results."""

from dataclasses import dataclass, replace

from t2t.models.config import ModelConfig, Size


@dataclass(frozen=True)
class Paper:
    """Published figures: parameters in millions, MACs in billions, ImageNet top-1."""

    params: float
    macs: float | None = None
    top1: float | None = None


@dataclass(frozen=True)
class Entry:
    """One model: how to build it, its costs and its published figures."""

    build: ModelConfig | str
    """The config of a model of t2t, or the name of a timm model."""
    parameters: int
    """Trainable parameters, exactly."""
    gmacs: float
    """Multiplications for one image, in billions, as docs/counting.md counts them."""
    about: str
    paper: Paper | None = None
    side: int = 224
    """Image size of a timm model."""

    @property
    def config(self) -> ModelConfig | None:
        """The config; None for a timm model."""
        return self.build if isinstance(self.build, ModelConfig) else None

    @property
    def image_size(self) -> Size:
        """The image size of the costs."""
        return self.config.image_size if self.config else (self.side, self.side)


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
    """A plain ViT: patches without overlap, learned positions, biases everywhere."""
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
    """Splits that give 16×16 tokens for 32 or 64 px, and mean pooling."""
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
# The ViT-S/16 in the T2T-ViT code uses torch's default epsilon, unlike the others.
VIT_S = replace(vit(768, 8, 8, 3), qkv_bias=False, norm_eps=1e-5)
VIT_B = vit(768, 12, 12)
# drop_path rises linearly over all 19 blocks, as in the other models. The reference
# uses the first four values of a ramp over 12 blocks, one per stage: at most .027.
DENSE = replace(
    t2t_vit(128, 19, 8, 2), wiring="dense", dense_stages=(3, 6, 6, 4), growth=64
)
GHOST = replace(t2t_vit(384, 16, 6, 3), mixer="ghost", mlp="ghost")
# The first stage has most tokens by far, so its heads attend along rows and columns.
PYRAMID_SMALL = replace(
    t2t_vit(64, 12, 2, 4),
    token_dropout=0.0,
    splits=((7, 2, 3), (3, 2, 1)),
    positions="sinusoid_2d",
    mlp="depthwise",
    wiring="pyramid",
    pyramid_stages=(2, 2, 6, 2),
    pyramid_mixers=("axial", "attention", "attention", "attention"),
    class_token=False,
    pool="mean",
)
DEIT_T = vit(192, 12, 3)
DEIT_S = vit(384, 12, 6)

# fmt: off
ZOO: dict[str, Entry] = {
    "t2t_vit_7": Entry(
        T2T_7,
        4_255_694, 1.156, "T2T-ViT, 7 layers", Paper(4.3, 1.1, 71.7)),
    "t2t_vit_10": Entry(
        T2T_10,
        5_834_702, 1.527, "T2T-ViT, 10 layers", Paper(5.9, 1.5, 75.2)),
    "t2t_vit_12": Entry(
        T2T_12,
        6_887_374, 1.775, "T2T-ViT, 12 layers", Paper(6.9, 1.8, 76.5)),
    "t2t_vit_14": Entry(
        T2T_14,
        21_465_806, 4.800, "T2T-ViT, 14 layers", Paper(21.5, 4.8, 81.5)),
    "t2t_vit_14_384": Entry(
        replace(T2T_14, image_size=(384, 384)),
        21_465_806, 16.419, "T2T-ViT-14 for 384 px", Paper(21.5, 17.1, 83.3)),
    "t2t_vit_19": Entry(
        T2T_19,
        39_085_070, 8.503, "T2T-ViT, 19 layers", Paper(39.2, 8.5, 81.9)),
    "t2t_vit_24": Entry(
        T2T_24,
        64_000_974, 13.692, "T2T-ViT, 24 layers", Paper(64.1, 13.8, 82.3)),
    "t2t_vit_t_14": Entry(
        softmax_tokens(T2T_14),
        21_465_422, 6.106, "softmax token transformers", Paper(21.5, 6.1, 81.7)),
    "t2t_vit_t_19": Entry(
        softmax_tokens(T2T_19),
        39_084_686, 9.808, "softmax token transformers", Paper(39.2, 9.8, 82.4)),
    "t2t_vit_t_24": Entry(
        softmax_tokens(T2T_24),
        64_000_590, 14.998, "softmax token transformers", Paper(64.1, 15.0, 82.6)),
    "t2t_vit_7_distilled": Entry(
        replace(T2T_7, distilled=True),
        4_512_950, 1.162, "with a distillation token", Paper(4.3, 1.1, 73.1)),
    "t2t_vit_12_distilled": Entry(
        replace(T2T_12, distilled=True),
        7_144_630, 1.784, "with a distillation token", Paper(6.9, 1.9, 77.4)),
    "t2t_vit_14_distilled": Entry(
        replace(T2T_14, distilled=True),
        21_851_190, 4.825, "with a distillation token"),
    "t2t_vit_14_resnext": Entry(
        replace(T2T_14, num_heads=32),
        21_465_806, 4.800, "more split heads"),
    "t2t_vit_14_wide": Entry(
        t2t_vit(768, 4, 12, 3),
        25_000_910, 5.242, "shallow and wide", Paper(25.0, 5.4, 78.8)),
    "t2t_vit_14_se": Entry(
        replace(T2T_14, mixer="attention_se"),
        21_723_854, 4.801, "channel attention"),
    "t2t_vit_16_ghost": Entry(GHOST, 16_173_518, 3.820, "ghost operation"),
    "t2t_vit_dense": Entry(DENSE, 23_617_750, 5.296, "dense connections"),
    "t2t_vit_14_patch": Entry(
        replace(T2T_14, tokenizer="patch", token_dropout=0.0),
        21_373_672, 4.553, "T2T-ViT-14 on hard patches", Paper(21.1, 4.2, 79.5)),
    "t2t_vit_c_14": Entry(
        replace(T2T_14, tokenizer="t2t_conv", token_dropout=0.0),
        21_346_344, 4.597, "tokens by convolutions"),
    "t2t_vit_14_depthwise": Entry(
        replace(T2T_14, mlp="depthwise"),
        21_627_086, 4.829, "depthwise convolution in the MLP"),
    "t2t_vit_14_conv_attention": Entry(
        replace(T2T_14, mixer="conv_attention"),
        21_627_086, 4.829, "depthwise convolutions before q, k, v"),
    "t2t_vit_14_axial": Entry(
        replace(T2T_14, mixer="axial"),
        21_465_806, 4.417, "attention along rows and columns"),
    "t2t_pyramid_tiny": Entry(
        replace(PYRAMID_SMALL, dim=32),
        3_654_254, 1.452, "pyramid of tokens, 12 layers"),
    "t2t_pyramid_small": Entry(
        PYRAMID_SMALL,
        13_791_118, 3.292, "pyramid of tokens, 12 layers"),
    "t2t_pyramid_base": Entry(
        replace(PYRAMID_SMALL, depth=20, pyramid_stages=(3, 4, 10, 3)),
        20_617_742, 4.972, "pyramid of tokens, 20 layers"),
    "t2t_vit_7_32": Entry(
        small_images(T2T_7, 32),
        4_043_264, 1.278, "for 32 px images"),
    "t2t_vit_12_32": Entry(
        small_images(T2T_12, 32),
        6_674_944, 2.120, "for 32 px images"),
    "t2t_vit_14_32": Entry(
        small_images(T2T_14, 32),
        21_159_296, 6.121, "for 32 px images"),
    "t2t_vit_7_64": Entry(
        small_images(T2T_7, 64),
        4_092_094, 1.278, "for 64 px images"),
    "t2t_vit_12_64": Entry(
        small_images(T2T_12, 64),
        6_723_774, 2.120, "for 64 px images"),
    "t2t_vit_14_64": Entry(
        small_images(T2T_14, 64),
        21_232_446, 6.122, "for 64 px images"),
    "vit_small_16": Entry(
        VIT_S,
        48_754_408, 9.902, "ViT-S/16, 8 layers", Paper(48.6, 10.1, 78.1)),
    "vit_base_16": Entry(
        VIT_B,
        86_567_656, 17.583, "ViT-B/16", Paper(86.4, 17.6, 79.8)),
    "vit_large_16": Entry(
        vit(1024, 24, 16),
        304_326_632, 61.604, "ViT-L/16", Paper(304.3, 63.6, 81.1)),
    "vit_huge_14": Entry(
        replace(vit(1280, 32, 16), patch_size=14),
        632_045_800, 167.402, "ViT-H/14", Paper(632.0)),
    "vit_small_16_linformer": Entry(
        replace(VIT_S, mixer="linformer"),
        48_956_136, 9.735, "ViT-S/16, linear attention"),
    "vit_small_resnet26d": Entry(
        replace(VIT_S, tokenizer="hybrid", stem="resnet26d"),
        52_414_280, 11.929, "ViT-S on a ResNet-26 stem"),
    "vit_base_resnet50": Entry(
        replace(VIT_B, tokenizer="hybrid", stem="resnet50"),
        95_307_560, 20.899, "ViT-B on a ResNet-50 stem"),
    "deit_tiny": Entry(DEIT_T, 5_717_416, 1.258, "DeiT-tiny"),
    "deit_small": Entry(
        DEIT_S,
        22_050_664, 4.608, "DeiT-small", Paper(22.1, 4.6, 79.9)),
    "deit_base": Entry(VIT_B, 86_567_656, 17.583, "DeiT-base"),
    "deit_tiny_distilled": Entry(
        replace(DEIT_T, distilled=True),
        5_910_800, 1.266, "with a distillation token"),
    "deit_small_distilled": Entry(
        replace(DEIT_S, distilled=True),
        22_436_432, 4.634, "with a distillation token", Paper(22.1, 4.6, 81.2)),
    "deit_base_distilled": Entry(
        replace(VIT_B, distilled=True),
        87_338_192, 17.676, "with a distillation token"),
    "resnet50": Entry(
        "resnet50",
        25_557_032, 4.089, "ResNet-50, from timm", Paper(25.5, 4.3, 79.1)),
    "resnet101": Entry(
        "resnet101",
        44_549_160, 7.801, "ResNet-101, from timm", Paper(44.6, 7.9, 79.9)),
    "resnet152": Entry(
        "resnet152",
        60_192_808, 11.514, "ResNet-152, from timm", Paper(60.2, 11.6, 80.8)),
    "resnet18_32": Entry(
        "resnet18_32",
        11_173_962, 0.555, "ResNet-18 for 32 px images, from timm", side=32),
    "resnet50_32": Entry(
        "resnet50_32",
        23_520_842, 1.298, "ResNet-50 for 32 px images, from timm", side=32),
    "mobilenet_v1": Entry(
        "mobilenetv1_100",
        4_231_976, 0.569, "MobileNetV1, from timm", Paper(4.2, 0.6, 70.8)),
    "mobilenet_v2": Entry(
        "mobilenetv2_100",
        3_504_872, 0.301, "MobileNetV2, from timm", Paper(3.5, 0.3, 72.8)),
    "mobilenet_v2_14": Entry(
        "mobilenetv2_140",
        6_108_776, 0.582, "MobileNetV2 1.4 wide, from timm", Paper(6.9, 0.6, 75.6)),
    "mobilenet_v3": Entry(
        "mobilenetv3_large_100",
        5_483_032, 0.217, "MobileNetV3-large, from timm", Paper(5.4, 0.2, 75.2)),
    "mobilenetv2_32": Entry(
        "mobilenetv2_32",
        2_236_682, 0.088, "MobileNetV2 for 32 px images, from timm", side=32),
}
# fmt: on

CONFIGS: dict[str, ModelConfig] = {
    name: entry.config for name, entry in ZOO.items() if entry.config is not None
}
"""The configs of all models of t2t, without timm's."""
