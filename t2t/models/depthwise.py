"""Depthwise convolutions over the token grid, in the MLP and before attention."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from t2t.models.layers import Mlp
from t2t.models.token_grid import Grid
from t2t.shapes import Tokens


class DepthwiseConvolution(nn.Module):
    """A convolution of each channel over the token grid.

    A prefix token is convolved by itself, as the only token of a grid: it has no
    neighbours. The convolution starts as the identity, so that a block starts as one
    without it.
    """

    needs_all_tokens = True

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)
        nn.init.dirac_(self.conv.weight, groups=dim)
        assert self.conv.bias is not None
        nn.init.zeros_(self.conv.bias)

    def forward(self, tokens: Tokens, grid: Grid) -> Tokens:
        prefix, image = split_prefix(tokens, grid)
        image = as_tokens(self.conv(as_map(image, grid)))
        num_prefix = prefix.shape[1]
        if num_prefix == 0:
            return image
        alone = self.conv(prefix.flatten(0, 1)[:, :, None, None])
        return torch.cat([alone.flatten(1).unflatten(0, (-1, num_prefix)), image], 1)


def split_prefix(tokens: Tokens, grid: Grid) -> tuple[Tokens, Tokens]:
    """The prefix tokens, and those of the image: the last ones."""
    num_prefix = tokens.shape[1] - grid[0] * grid[1]
    return tokens[:, :num_prefix], tokens[:, num_prefix:]


def as_map(image: Tokens, grid: Grid) -> Tensor:
    """The tokens of images as feature maps."""
    return image.transpose(1, 2).unflatten(2, grid)


def as_tokens(feature_map: Tensor) -> Tokens:
    """The inverse of `as_map`."""
    return feature_map.flatten(2).transpose(1, 2)


class DepthwiseMlp(Mlp):
    """An MLP with a depthwise convolution and a second GELU among its hidden channels.

    As in CeiT, without its batch norms.
    """

    takes_grid = True

    def __init__(self, dim: int, hidden_dim: int) -> None:
        expand = nn.Sequential(nn.Linear(dim, hidden_dim), nn.GELU())
        super().__init__(expand, hidden_dim, dim)
        self.local = DepthwiseConvolution(hidden_dim)

    def forward(  # type: ignore[override]
        self, x: Tokens, grid: Grid
    ) -> Tokens:
        return self.reduce(F.gelu(self.local(self.expand(x), grid)))


class ConvQKV(nn.Module):
    """Queries, keys and values, each from tokens after a depthwise convolution.

    As in CvT with stride 1, without its batch norms.
    """

    takes_grid = True

    def __init__(self, dim: int, *, bias: bool) -> None:
        super().__init__()
        self.local = nn.ModuleList(DepthwiseConvolution(dim) for _ in range(3))
        self.linear = nn.ModuleList(nn.Linear(dim, dim, bias=bias) for _ in range(3))

    def forward(self, x: Tokens, grid: Grid) -> Tokens:
        parts = zip(self.local, self.linear, strict=True)
        return torch.cat([linear(local(x, grid)) for local, linear in parts], dim=-1)
