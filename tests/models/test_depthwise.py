"""Depthwise convolutions over the token grid, against loops over its neighbours."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from t2t.models.create import create_model
from t2t.models.depthwise import ConvQKV, DepthwiseConvolution, DepthwiseMlp

GRID = (3, 5)


def random_weights(module: nn.Module) -> None:
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)


def tokens(num_prefix: int, dim: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(num_prefix)
    return torch.randn(2, num_prefix + GRID[0] * GRID[1], dim, generator=generator)


def convolved(x: Tensor, module: DepthwiseConvolution, num_prefix: int) -> Tensor:
    """Each image token as the weighted sum of its neighbours; prefix tokens alone."""
    weight = module.conv.weight[:, 0]
    out = x * weight[:, 1, 1] + module.conv.bias
    for row in range(GRID[0]):
        for column in range(GRID[1]):
            total = module.conv.bias.clone()
            for up in (-1, 0, 1):
                for left in (-1, 0, 1):
                    r, c = row + up, column + left
                    if 0 <= r < GRID[0] and 0 <= c < GRID[1]:
                        near = x[:, num_prefix + r * GRID[1] + c]
                        total = total + near * weight[:, up + 1, left + 1]
            out[:, num_prefix + row * GRID[1] + column] = total
    return out


@pytest.mark.parametrize("num_prefix", [0, 1, 2])
def test_convolution_sees_neighbours_on_the_grid_alone(num_prefix: int) -> None:
    module = DepthwiseConvolution(4)
    random_weights(module)
    x = tokens(num_prefix)
    torch.testing.assert_close(module(x, GRID), convolved(x, module, num_prefix))


def test_convolution_starts_as_the_identity() -> None:
    x = tokens(1)
    torch.testing.assert_close(DepthwiseConvolution(4)(x, GRID), x)


def test_mlp_is_expand_gelu_convolution_gelu_reduce() -> None:
    module = DepthwiseMlp(4, 6)
    random_weights(module)
    x = tokens(1)
    hidden = F.gelu(F.linear(x, module.expand[0].weight, module.expand[0].bias))
    hidden = F.gelu(convolved(hidden, module.local, 1))
    expected = F.linear(hidden, module.reduce.weight, module.reduce.bias)
    torch.testing.assert_close(module(x, GRID), expected)


def test_queries_keys_and_values_have_their_own_convolutions() -> None:
    module = ConvQKV(4, bias=True)
    random_weights(module)
    x = tokens(1)
    expected = [
        linear(convolved(x, local, 1))
        for local, linear in zip(module.local, module.linear, strict=True)
    ]
    torch.testing.assert_close(module(x, GRID), torch.cat(expected, dim=-1))


@pytest.mark.parametrize(
    "change", [{"mlp": "depthwise"}, {"mixer": "conv_attention"}, {"mixer": "axial"}]
)
def test_token_dropping_is_refused(change: dict[str, str]) -> None:
    model = create_model("t2t_vit_7", dim=16, depth=1, num_heads=2, **change)
    model.encoder.keep_tokens(1.0)
    with pytest.raises(ValueError, match=next(iter(change.values()))):
        model.encoder.keep_tokens(0.5)
