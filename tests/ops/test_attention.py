"""Attention of packed q, k, v, and the tiles of its kernels."""

import pytest
import torch

from t2t.ops.attention import MAX_TOKENS, attention, attention_reference, has_kernel
from t2t.ops.attention_tiles import (
    BackwardTiles,
    Tiles,
    backward_tiles,
    forward_tiles,
)


def test_packed_attention_is_softmax_attention_by_heads():
    torch.manual_seed(0)
    qkv = torch.randn(2, 7, 3 * 4 * 8, dtype=torch.float64)
    q, k, v = qkv.view(2, 7, 3, 4, 8).permute(2, 0, 3, 1, 4)
    weights = torch.softmax(0.3 * q @ k.transpose(-2, -1), dim=-1)
    wanted = (weights @ v).transpose(1, 2).reshape(2, 7, 32)
    torch.testing.assert_close(attention(qkv, 4, 0.3), wanted)


def is_side(side):
    return side >= 16 and side & (side - 1) == 0


def test_tiles_hold_all_tokens():
    tiles = Tiles(rows=128, columns=32, warps=8, stages=2)
    for tokens in range(1, MAX_TOKENS + 1):
        for side, last in (
            (tiles.rows, tiles.last_rows(tokens)),
            (tiles.columns, tiles.last_columns(tokens)),
        ):
            left = tokens % side
            assert is_side(last)
            assert left <= last <= side
            # Half of a narrow tile is used, unless there is none narrower.
            assert left == 0 or last <= max(16, 2 * left - 1)
        whole = (tiles.count(tokens) - 1) * tiles.rows
        assert whole < tokens <= whole + tiles.rows


@pytest.mark.parametrize(
    ("tokens", "head", "taken"),
    [
        (197, 64, True),
        (MAX_TOKENS, 64, True),
        (MAX_TOKENS + 1, 64, False),
        (197, 16, True),
        (197, 48, False),
        (197, 128, False),
    ],
)
def test_kernels_take_supported_shapes(monkeypatch, tokens, head, taken):
    monkeypatch.setattr("t2t.ops.attention.runs_matmul_kernels", lambda x, dtype: True)
    qkv = torch.empty(1, tokens, 3 * 6 * head, device="meta")
    assert has_kernel(qkv, 6) is taken


@pytest.mark.parametrize("scale", [0.0, -0.3])
def test_kernels_take_positive_scales_only(monkeypatch, scale):
    monkeypatch.setattr("t2t.ops.attention.has_kernel", lambda qkv, num_heads: True)
    qkv = torch.randn(2, 7, 3 * 4 * 16)
    assert torch.equal(attention(qkv, 4, scale), attention_reference(qkv, 4, scale))


def test_197_tokens_are_not_computed_as_256():
    for tiles in (forward_tiles(197), backward_tiles(197)):
        for part in tiles if isinstance(tiles, BackwardTiles) else (tiles,):
            assert isinstance(part, Tiles)
            assert (part.count(197) - 1) * part.rows + part.last_rows(197) == 208
