"""Runs every kernel and prints its errors against float64 as JSON.

    TRITON_INTERPRET=1 python tests/ops/kernel_errors.py cpu float32
    python tests/ops/kernel_errors.py cuda bfloat16

The first is what test_kernels.py starts, in a process of its own: Triton reads the
variable once, at import. The second runs the real thing.
"""

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._library.triton import set_wrap_triton_enabled

from t2t.ops.attention import attention_reference, backward_by, forward_by
from t2t.ops.attention_tiles import BackwardTiles, Tiles
from t2t.ops.operators import (
    fused_gelu,
    fused_norm,
    fused_residual_norm,
    fused_token_transformer,
    packed_attention,
)
from t2t.ops.residual_norm import (
    draw_slots,
    norm_reference,
    residual_norm_reference,
)
from t2t.ops.token_transformer import TokenWeights, token_transformer_reference
from t2t.ops.window_projection import Windows

DEVICE = sys.argv[1]
DTYPE = getattr(torch, sys.argv[2])
TILES = Tiles(rows=64, columns=64, warps=4, stages=2)
WIDE = Tiles(rows=128, columns=32, warps=8, stages=2)


def relative(found: Tensor, wanted: Tensor) -> float:
    """‖found − wanted‖ / ‖wanted‖."""
    difference = (found.double() - wanted.double()).norm()
    return (difference / wanted.double().norm()).item()


def errors(
    fast: Callable[..., Any],
    reference: Callable[..., Any],
    inputs: Sequence[Any],
    differentiable: Sequence[int],
    wide: Sequence[int] = (),
) -> dict[str, list[float]]:
    """Errors of outputs and gradients against the reference in float64.

    Inputs named in `wide` keep float32.
    """
    results = []
    # Tokens are rounded to the precision tested; what they are compared to is not.
    inputs = [
        value.to(DEVICE, DTYPE if value.ndim == 3 and place not in wide else None)
        if isinstance(value, Tensor)
        else value
        for place, value in enumerate(inputs)
    ]
    for function, double in ((fast, False), (reference, True)):
        arguments = [
            (value.double() if double else value)
            .detach()
            .requires_grad_(place in differentiable)
            if isinstance(value, Tensor) and value.is_floating_point()
            else value
            for place, value in enumerate(inputs)
        ]
        outputs = function(*arguments)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        torch.manual_seed(1)
        weights = [
            torch.randn(out.shape, dtype=torch.float64).to(out.device, out.dtype)
            for out in outputs
        ]
        wanted = [arguments[place] for place in differentiable]
        results.append((outputs, torch.autograd.grad(outputs, wanted, weights)))
    (fast_out, fast_grad), (true_out, true_grad) = results
    return {
        "out": [relative(*pair) for pair in zip(fast_out, true_out, strict=True)],
        "grad": [relative(*pair) for pair in zip(fast_grad, true_grad, strict=True)],
    }


class AttentionBy(torch.autograd.Function):
    """Attention by given tiles instead of those its operation chooses."""

    @staticmethod
    def forward(ctx, qkv, num_heads, scale, forward_tiles, backward_tiles):
        with set_wrap_triton_enabled(False):
            out, log_sum = forward_by(forward_tiles, qkv, num_heads, scale)
        ctx.save_for_backward(qkv, out, log_sum)
        ctx.others = (num_heads, scale, backward_tiles)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        num_heads, scale, tiles = ctx.others
        with set_wrap_triton_enabled(False):
            grad = backward_by(tiles, *ctx.saved_tensors, grad_out, num_heads, scale)
        return grad, None, None, None, None


def attention_errors(
    tokens: int,
    *tiles: Tiles | BackwardTiles,
    lowest: float = 0.0,
    head: int = 64,
) -> dict[str, list[float]]:
    """Packed attention of two heads; all logits lie about `lowest`."""
    qkv = torch.randn(2, tokens, 3, 2, head)
    qkv[:, :, 0, :, 0] = 16.0
    qkv[:, :, 1, :, 0] = lowest / (16.0 * 0.125)
    return errors(
        (lambda *arguments: AttentionBy.apply(*arguments, *tiles))
        if tiles
        else (lambda *arguments: packed_attention(*arguments)[0]),
        attention_reference,
        (qkv.flatten(2), 2, 0.125),
        [0],
    )


def residual_norm_errors(
    token_dropping: bool, scale: float = 1.3, wide: bool = False
) -> dict[str, list[float]]:
    """Residual sum and LayerNorm, with and without dropped samples."""
    batch, tokens, dim = 6, 5, 48
    slots: tuple[Tensor | None, Tensor | None, int]
    slots = (None, None, batch)
    kept = batch
    if token_dropping:
        kept = batch - 1
        drawn = draw_slots(batch, [kept, batch - 2], torch.device("cpu"))
        slots = (drawn[0], drawn[1], batch - 2)
    tensors = [torch.randn(batch, tokens, dim), torch.randn(kept, tokens, dim)]
    vectors = [torch.randn(dim) for _ in range(3)]
    return errors(
        fused_residual_norm,
        residual_norm_reference,
        (*tensors, *vectors, *slots, scale, 1e-5),
        [0, 1, 2, 3, 4],
        [0] if wide else [],
    )


def norm_errors(token_dropping: bool) -> dict[str, list[float]]:
    """LayerNorm alone, of all samples or of those kept."""
    slots = draw_slots(6, [4], torch.device("cpu"))[0] if token_dropping else None
    return errors(
        lambda *arguments: fused_norm(*arguments, DTYPE),
        lambda *arguments: norm_reference(*arguments, torch.float64),
        (
            torch.randn(6, 5, 48),
            *(torch.randn(48) for _ in range(2)),
            *(slots, 4 if token_dropping else 6, 1e-5),
        ),
        [0, 1, 2],
    )


def gelu_errors() -> dict[str, list[float]]:
    """GELU and the gradient of the bias that its input already holds."""
    inner = torch.randn(3, 70, 200) * 2
    # So far out that the polynomial inside the kernel would turn back.
    inner[0, 0] = torch.linspace(-40, 40, 200)
    return errors(
        fused_gelu,
        lambda inner, bias: torch.nn.functional.gelu(inner + bias - bias.detach()),
        (inner, torch.randn(200)),
        [0, 1],
    )


def token_transformer_errors(drop_rate: float, size: float) -> dict[str, list[float]]:
    """The token transformer on keys and queries of about this size per channel."""
    batch, tokens = 2, 150
    features = torch.linalg.qr(torch.randn(64, 64))[0][:32] * 32**0.5
    return errors(
        lambda *arguments: fused_token_transformer(*arguments)[:2],
        lambda *given: token_transformer_reference(
            Windows(*given[:5], torch.Size()), TokenWeights(*given[5:10]), *given[10:]
        ),
        (
            torch.randn(batch, tokens, 192) * size,
            torch.rand(batch, tokens) + 0.5,
            torch.randn(batch, tokens) * 0.1,
            torch.randn(192) * 0.1,
            torch.randn(192) * 0.3,
            features,
            *(torch.randn(64, 64) * 0.1 for _ in range(3)),
            torch.randn(3, 64),
            torch.tensor(77123),
            drop_rate,
            1e-5,
        ),
        [0, 1, 4, 6, 7, 8, 9],
    )


def main() -> None:
    """Prints one JSON object: case, then errors."""
    torch.manual_seed(0)
    cases: dict[str, Callable[[], dict[str, list[float]]]] = {
        "attention of 16": lambda: attention_errors(16),
        "attention of 37": lambda: attention_errors(37),
        "attention of 128": lambda: attention_errors(128),
        "attention of 197": lambda: attention_errors(197),
        "attention of 257": lambda: attention_errors(257),
        "attention of 577": lambda: attention_errors(577),
        "attention by heads of 16": lambda: attention_errors(150, head=16),
        "attention by heads of 32": lambda: attention_errors(70, head=32),
        "attention far below zero": lambda: attention_errors(
            *(150, TILES, BackwardTiles(TILES, TILES)), lowest=-400.0
        ),
        "attention of 37 far below zero": lambda: attention_errors(37, lowest=-400.0),
        "attention in wide tiles": lambda: attention_errors(
            150, WIDE, BackwardTiles(WIDE, WIDE)
        ),
        "residual_norm": lambda: residual_norm_errors(token_dropping=False),
        "residual_norm of one gradient": lambda: residual_norm_errors(False, 1.0),
        "residual_norm dropping": lambda: residual_norm_errors(token_dropping=True),
        "residual_norm of a float32 stream": lambda: residual_norm_errors(
            token_dropping=True, wide=True
        ),
        "norm": lambda: norm_errors(token_dropping=False),
        "norm dropping": lambda: norm_errors(token_dropping=True),
        "gelu": gelu_errors,
        "token_transformer": lambda: token_transformer_errors(0.0, 1.0),
        "token_transformer dropout": lambda: token_transformer_errors(0.1, 1.0),
        "token_transformer large": lambda: token_transformer_errors(0.0, 4.0),
    }
    print(json.dumps({name: case() for name, case in cases.items()}))


if __name__ == "__main__":
    main()
