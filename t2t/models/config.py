"""The config of a model: its slots and its size."""

from dataclasses import dataclass

from t2t.errors import UserError, require

Size = tuple[int, int]
SplitNumbers = tuple[int, int, int]

IMAGENET_SPLITS: tuple[SplitNumbers, ...] = ((7, 4, 2), (3, 2, 1), (3, 2, 1))


MAX_ATTENTION_SCALE = 1e30
MAX_BLOCKS = 1000
MAX_SPLITS = 16
MAX_IMAGE_PIXELS = 2**24
"""Limit for one image; more is a typing error or a damaged file."""
MAX_TOKENS = 2**16
"""Limit on tokens that enter the backbone: more need too much memory."""


def check_image_size(size: Size) -> None:
    """Raises an error for images of no pixels, or of more than MAX_IMAGE_PIXELS."""
    height, width = size
    if min(size) < 1:
        raise UserError(f"image_size={size} must be positive: (height, width).")
    if height * width > MAX_IMAGE_PIXELS:
        raise UserError(
            f"image_size={size} asks for images of {height * width:,} pixels; at most "
            f"{MAX_IMAGE_PIXELS:,} are allowed, such as 4096×4096."
        )


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The four slots, the size, the classes and the images of a vision transformer.

    tokenizer, positions, mixer and mlp also take registered names (docs/extending.md).
    """

    dim: int
    """Width of the tokens in the backbone."""
    depth: int
    """Number of blocks."""
    num_heads: int
    """Attention heads of each block."""
    mlp_ratio: float
    """Hidden width of the MLP over `dim`."""

    tokenizer: str = "t2t_performer"
    """How images become tokens: patch, t2t, t2t_performer, t2t_conv or hybrid."""
    splits: tuple[SplitNumbers, ...] = IMAGENET_SPLITS
    """Soft splits of the t2t tokenizers, each (kernel, stride, padding)."""
    token_dim: int = 64
    """Width inside the t2t tokenizers."""
    token_dropout: float = 0.0
    """Dropout inside the token transformers while training."""
    patch_size: int = 16
    """Side of a hard patch, for the patch tokenizer."""
    stem: str = "resnet50"
    """timm network whose stride-16 features the hybrid tokenizer uses."""

    positions: str = "sinusoid"
    """none, sinusoid, sinusoid_2d, learned_1d, learned_2d, relative or fixed."""
    positions_at: str = "stem"
    """Where positions enter: stem, every_layer or shared."""

    mixer: str = "attention"
    """attention, attention_se, conv_attention, axial, ghost or linformer."""
    mlp: str = "mlp"
    """mlp, depthwise or ghost."""
    qkv_bias: bool = False
    """Whether queries, keys and values have a bias."""
    attention_scale: float | None = None
    """Factor before the softmax; head_dim ** -0.5 when None."""
    linformer_dim: int = 64
    """Keys and values left after the Linformer projection along the sequence."""

    wiring: str = "residual"
    """residual; dense: blocks concatenate instead of adding; or pyramid: soft splits
    between stages shrink the token grid and double width and heads."""
    dense_stages: tuple[int, ...] = ()
    """Blocks in each stage of the dense wiring; their sum is `depth`."""
    growth: int = 0
    """Channels that each block of the dense wiring adds."""
    pyramid_stages: tuple[int, ...] = ()
    """Blocks in each stage of the pyramid wiring; their sum is `depth`."""
    pyramid_mixers: tuple[str, ...] = ()
    """The mixer of each stage of the pyramid wiring; empty for `mixer` in all."""

    class_token: bool = True
    """Adds a class token before those of the image."""
    pool: str = "class"
    """Input of the head: class (the class token), mean (of the image's tokens), or
    none (every token by itself)."""
    distilled: bool = False
    """Adds a distillation token with its own head."""
    norm_eps: float = 1e-5
    """Epsilon of every LayerNorm."""

    num_classes: int = 1000
    """Outputs of the head; 0 leaves the head out."""
    image_size: Size = (224, 224)
    """Height and width that the positions are for; other sizes interpolate them."""
    in_channels: int = 3
    """Channels of the images."""
    drop_path: float = 0.0
    """Stochastic depth of the last block while training; grows linearly from 0."""

    def __post_init__(self) -> None:
        """Raises an error for sizes that no model can have."""
        sizes = ("dim", "depth", "num_heads", "token_dim", "patch_size", "in_channels")
        for name in (*sizes, "linformer_dim"):
            require(name, getattr(self, name), 1)
        require("depth", self.depth, 1, MAX_BLOCKS)
        for name in ("dense_stages", "pyramid_stages"):
            for stage in getattr(self, name):
                require(name, stage, 1, MAX_BLOCKS)
        if not 1 <= len(self.splits) <= MAX_SPLITS:
            raise UserError(
                f"splits has {len(self.splits)} soft splits; 1 to {MAX_SPLITS} are "
                "allowed, such as (7,4,2),(3,2,1),(3,2,1)."
            )
        check_image_size(self.image_size)
        for name in ("num_classes", "growth", "norm_eps"):
            require(name, getattr(self, name), 0)
        require("mlp_ratio", self.mlp_ratio, 1 / self.dim)
        for name in ("drop_path", "token_dropout"):
            require(name, getattr(self, name), 0, below=1)
        if self.attention_scale is not None:
            require(
                "attention_scale",
                self.attention_scale,
                -MAX_ATTENTION_SCALE,
                MAX_ATTENTION_SCALE,
            )

    @property
    def num_prefix_tokens(self) -> int:
        """Tokens in front of the image's: class and distillation."""
        return int(self.class_token) + int(self.distilled)
