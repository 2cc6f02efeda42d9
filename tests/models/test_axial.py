"""Axial attention against all pairs with a mask, and line by line."""

import pytest
import torch
from torch import Tensor, nn

from t2t.models.axial import AxialAttention
from t2t.models.create import create_model

GRID = (3, 4)


def layer(num_heads: int) -> AxialAttention:
    torch.manual_seed(0)
    dim = 4 * num_heads
    return AxialAttention(dim, num_heads, qkv=nn.Linear(dim, 3 * dim)).eval()


def one_by_one(mixer: AxialAttention, x: Tensor, num_prefix: int) -> Tensor:
    """Every token of every head by itself: which others it sees, and their mean."""
    rows, columns = GRID
    query, key, value = mixer.heads(mixer.qkv(x), GRID)
    out = torch.zeros_like(query)
    for head in range(mixer.num_heads):
        by_row = head < mixer.num_heads - mixer.num_heads // 2
        for token in range(x.shape[1]):
            place = token - num_prefix
            seen = [*range(x.shape[1])]
            if place >= 0:
                line = [
                    other
                    for other in range(rows * columns)
                    if (other // columns == place // columns if by_row else
                        other % columns == place % columns)
                ]  # fmt: skip
                seen = [*range(num_prefix), *(num_prefix + other for other in line)]
            logits = key[:, head, seen] @ query[:, head, token, :, None]
            weights = (mixer.scale * logits).softmax(1)
            out[:, head, token] = (weights * value[:, head, seen]).sum(1)
    return mixer.proj(out.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("num_prefix", [0, 1, 2])
@pytest.mark.parametrize("num_heads", [2, 3])
def test_heads_see_rows_or_columns(num_heads: int, num_prefix: int) -> None:
    mixer = layer(num_heads)
    x = torch.randn(2, num_prefix + 12, 4 * num_heads)
    torch.testing.assert_close(mixer(x, GRID), one_by_one(mixer, x, num_prefix))


@pytest.mark.parametrize("num_prefix", [0, 2])
def test_the_map_is_that_of_the_output(num_prefix: int) -> None:
    mixer = layer(3)
    x = torch.randn(2, num_prefix + 12, 12)
    _, _, value = mixer.heads(mixer.qkv(x), GRID)
    mixed = mixer.weights(x, GRID) @ value
    expected = mixer.proj(mixed.transpose(1, 2).flatten(2))
    torch.testing.assert_close(mixer(x, GRID), expected)


def test_hooks_get_the_map() -> None:
    mixer, seen = layer(2), []
    x = torch.randn(1, 13, 8)
    expected = mixer(x, GRID)
    mixer.attn.register_forward_hook(lambda module, inputs, output: seen.append(output))
    torch.testing.assert_close(mixer(x, GRID), expected)
    torch.testing.assert_close(seen[0], mixer.weights(x, GRID))


@pytest.mark.parametrize(
    ("change", "words"),
    [({"num_heads": 1}, "num_heads"), ({"positions": "relative"}, "relative")],
)
def test_what_it_cannot_do_is_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        create_model("t2t_vit_14_axial", **change)
