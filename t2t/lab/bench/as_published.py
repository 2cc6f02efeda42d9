"""T2T-ViT computed as the paper reads, operation by operation: what we are timed by."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from t2t.errors import UserError
from t2t.models.config import ModelConfig
from t2t.models.positions import sinusoid
from t2t.models.vit import VisionTransformer
from t2t.shapes import FeatureMap, Images, Logits, Tokens


class PlainMlp(nn.Module):
    """Linear, GELU, linear."""

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.expand = nn.Sequential(nn.Linear(dim, hidden_dim), nn.GELU())
        self.reduce = nn.Linear(hidden_dim, dim)

    def forward(self, tokens: Tokens) -> Tokens:
        return self.reduce(self.expand(tokens))


class PlainTokenStep(nn.Module):
    """Unfold, then a transformer of one head whose skip runs through the values."""

    def __init__(
        self, config: ModelConfig, split: tuple[int, int, int], in_channels: int
    ) -> None:
        super().__init__()
        self.split = split
        dim, window_dim = config.token_dim, in_channels * split[0] ** 2
        self.scale = window_dim**-0.5
        performer = config.tokenizer == "t2t_performer"
        self.norm1 = nn.LayerNorm(window_dim, eps=config.norm_eps)
        self.qkv = nn.Linear(window_dim, 3 * dim, bias=performer)
        self.proj = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim, eps=config.norm_eps)
        self.mlp = PlainMlp(dim, dim)
        features = torch.zeros(dim // 2, dim) if performer else None
        self.register_buffer("features", features)
        self.features: Tensor | None

    def forward(self, image: FeatureMap) -> FeatureMap:
        projected = self.qkv(self.norm1(windows(image, self.split)))
        if self.features is None:
            query, key, value = projected.chunk(3, dim=-1)
            weights = torch.softmax(query @ key.transpose(1, 2) * self.scale, dim=-1)
            mixed = weights @ value
        else:
            key, query, value = projected.chunk(3, dim=-1)
            queries = positive(query, self.features)
            keys = positive(key, self.features)
            mass = queries @ keys.sum(1).unsqueeze(-1)
            mixed = queries @ (keys.transpose(1, 2) @ value) / (mass + 1e-8)
        tokens = value + self.proj(mixed)
        tokens = tokens + self.mlp(self.norm2(tokens))
        kernel, stride, padding = self.split
        grid = [(side + 2 * padding - kernel) // stride + 1 for side in image.shape[2:]]
        return tokens.transpose(1, 2).reshape(len(tokens), -1, *grid)


def windows(image: FeatureMap, split: tuple[int, int, int]) -> Tokens:
    """Overlapping windows of a map, each laid out as one token."""
    kernel, stride, padding = split
    return F.unfold(image, kernel, padding=padding, stride=stride).transpose(1, 2)


def positive(tokens: Tokens, features: Tensor) -> Tokens:
    """The Performer's random features of its exponential kernel."""
    exponent = tokens @ features.T - tokens.square().sum(-1, keepdim=True) / 2
    return torch.exp(exponent) / features.shape[0] ** 0.5


class PlainTokens(nn.Module):
    """Three soft splits with a transformer after each but the last."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        *inner, self.last = config.splits
        widths = [config.in_channels] + [config.token_dim] * len(inner)
        self.steps = nn.ModuleList(
            PlainTokenStep(config, split, width)
            for split, width in zip(inner, widths, strict=False)
        )
        self.project = nn.Linear(widths[-1] * self.last[0] ** 2, config.dim)

    def forward(self, images: Images) -> Tokens:
        for step in self.steps:
            images = step(images)
        return self.project(windows(images, self.last))


class PlainAttention(nn.Module):
    """Multi-head attention with its map written out."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.scale = config.attention_scale or (config.dim // config.num_heads) ** -0.5
        self.qkv = nn.Linear(config.dim, 3 * config.dim, bias=config.qkv_bias)
        self.proj = nn.Linear(config.dim, config.dim)

    def forward(self, tokens: Tokens) -> Tokens:
        batch, length, dim = tokens.shape
        qkv = self.qkv(tokens).reshape(batch, length, 3, self.num_heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        weights = torch.softmax(query @ key.transpose(-2, -1) * self.scale, dim=-1)
        return self.proj((weights @ value).transpose(1, 2).reshape(batch, length, dim))


class PlainBlock(nn.Module):
    """Pre-norm attention and MLP, each with a skip."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.dim, eps=config.norm_eps)
        self.mixer = PlainAttention(config)
        self.norm2 = nn.LayerNorm(config.dim, eps=config.norm_eps)
        self.mlp = PlainMlp(config.dim, int(config.dim * config.mlp_ratio))

    def forward(self, tokens: Tokens) -> Tokens:
        tokens = tokens + self.mixer(self.norm1(tokens))
        return tokens + self.mlp(self.norm2(tokens))


class AsPublished(nn.Module):
    """A T2T-ViT with the weights of one of ours, for inference at its own size."""

    def __init__(self, model: VisionTransformer) -> None:
        super().__init__()
        config = model.config
        check_plain(config)
        self.tokenizer = PlainTokens(config)
        self.prefix = nn.Parameter(torch.zeros(1, 1, config.dim))
        rows, columns = model.tokenizer.grids(config.image_size)[-1]
        table = sinusoid(1 + rows * columns, config.dim)
        self.register_buffer("table", table, persistent=False)
        self.table: Tensor
        self.encoder = nn.ModuleDict(
            {
                "blocks": nn.Sequential(
                    *(PlainBlock(config) for _ in range(config.depth))
                )
            }
        )
        self.norm = nn.LayerNorm(config.dim, eps=config.norm_eps)
        self.head = nn.Linear(config.dim, config.num_classes)
        # The parts are named as ours are: no weight can be left over or left out.
        self.load_state_dict(model.state_dict())
        self.eval()

    def forward(self, images: Images) -> Logits:
        tokens = self.tokenizer(images)
        prefix = self.prefix.expand(len(tokens), -1, -1)
        tokens = torch.cat([prefix, tokens], dim=1) + self.table
        tokens = self.norm(self.encoder["blocks"](tokens))
        return self.head(tokens[:, 0])


def check_plain(config: ModelConfig) -> None:
    """Refuses what the paper's main models do not have."""
    needed = {
        "positions": "sinusoid",
        "positions_at": "stem",
        "mixer": "attention",
        "mlp": "mlp",
        "wiring": "residual",
        "pool": "class",
        "distilled": False,
    }
    other = [name for name, value in needed.items() if getattr(config, name) != value]
    if config.tokenizer not in ("t2t", "t2t_performer"):
        other.append("tokenizer")
    if other:
        given = ", ".join(f"{name}={getattr(config, name)!r}" for name in other)
        raise UserError(
            f"The plain path is written for T2T-ViT as published, and this model has "
            f"{given}; name t2t_vit_14, t2t_vit_t_14 or another size of theirs."
        )
