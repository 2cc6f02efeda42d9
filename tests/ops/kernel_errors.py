"""Errors of every kernel against its reference in float64, forward and backward.

    TRITON_INTERPRET=1 python tests/ops/kernel_errors.py cpu float32
    python tests/ops/kernel_errors.py cuda bfloat16

Prints JSON: the errors of all cases or, after `-`, of each case that standard input
names. test_kernels.py runs the first in a subprocess, since Triton reads the variable
at import, and calls `CASES` in its own process if there is a GPU.
"""

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._library.triton import set_wrap_triton_enabled

from t2t.ops.attention import attention_reference, backward_by, forward_by
from t2t.ops.attention_tiles import BackwardTiles, Tiles
from t2t.ops.embedding import TokenParts, embed_reference
from t2t.ops.first_attention import first_attention_reference
from t2t.ops.image_windows import gathered_windows_reference, image_windows_reference
from t2t.ops.kept_samples import draw_kept_indices
from t2t.ops.kernels.numbers import TOKEN_DIM
from t2t.ops.operations import (
    fused_embedding,
    fused_first_attention,
    fused_gathered_windows,
    fused_gelu,
    fused_image_windows,
    fused_norm,
    fused_ranks,
    fused_residual_norm,
    fused_token_transformer,
    packed_attention,
)
from t2t.ops.partial_sums import sum_partials, sum_partials_reference
from t2t.ops.ranks import ranks_reference
from t2t.ops.residual_norm import norm_reference, residual_norm_reference
from t2t.ops.soft_split import Split
from t2t.ops.token_transformer import TokenWeights, token_transformer_reference
from t2t.ops.window_projection import Windows

Errors = dict[str, list[float]]
SQUARE_TILES = Tiles(rows=64, columns=64, warps=4, stages=2)
WIDE_TILES = Tiles(rows=128, columns=32, warps=8, stages=2)


class Target(NamedTuple):
    """Where kernels run, and in which precision."""

    device: str
    dtype: torch.dtype


def relative(found: Tensor, wanted: Tensor) -> float:
    """‖found − wanted‖ / ‖wanted‖."""
    difference = (found.double() - wanted.double()).norm()
    return (difference / wanted.double().norm()).item()


def errors(
    target: Target,
    fast: Callable[..., Any],
    reference: Callable[..., Any],
    inputs: Sequence[Any],
    differentiable: Sequence[int],
    wide: Sequence[int] = (),
) -> Errors:
    """Errors of outputs and gradients; inputs at the positions `wide` stay float32."""
    results = []
    # Tokens are rounded to the tested precision before both computations.
    inputs = [
        value.to(
            target.device, target.dtype if value.ndim == 3 and i not in wide else None
        )
        if isinstance(value, Tensor)
        else value
        for i, value in enumerate(inputs)
    ]
    for function, double in ((fast, False), (reference, True)):
        arguments = [
            (value.double() if double else value)
            .detach()
            .requires_grad_(i in differentiable)
            if isinstance(value, Tensor) and value.is_floating_point()
            else value
            for i, value in enumerate(inputs)
        ]
        outputs = function(*arguments)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        torch.manual_seed(1)
        weights = [
            torch.randn(out.shape, dtype=torch.float64).to(out.device, out.dtype)
            for out in outputs
        ]
        wanted = [arguments[i] for i in differentiable]
        results.append((outputs, torch.autograd.grad(outputs, wanted, weights)))
    (fast_out, fast_grad), (true_out, true_grad) = results
    return {
        "out": [relative(*pair) for pair in zip(fast_out, true_out, strict=True)],
        "grad": [relative(*pair) for pair in zip(fast_grad, true_grad, strict=True)],
    }


class AttentionBy(torch.autograd.Function):
    """Attention with given tiles instead of those that the package chooses."""

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
    target: Target,
    tokens: int,
    tiles: Tiles | None = None,
    lowest: float = 0.0,
    head: int = 64,
) -> Errors:
    """Packed attention with two heads; all logits are about `lowest`."""
    num_samples = 2 if tokens < 256 else 1  # the interpreter is slow
    qkv = torch.randn(num_samples, tokens, 3, 2, head)
    qkv[:, :, 0, :, 0] = 16.0
    qkv[:, :, 1, :, 0] = lowest / (16.0 * 0.125)

    def fast(*arguments: Any) -> Tensor:
        if tiles is None:
            return packed_attention(*arguments)[0]
        return AttentionBy.apply(*arguments, tiles, BackwardTiles(tiles, tiles))

    inputs = (qkv.flatten(2), 2, 0.125)
    return errors(target, fast, attention_reference, inputs, [0])


def first_attention_errors(
    target: Target, num_read: int, head: int = 64, with_bias: bool = False
) -> Errors:
    """Attention of the first tokens, with two heads."""
    width = 2 * head
    weight = torch.randn(3 * width, width) * width**-0.5
    # The gradient of the keys' bias is zero, and that of a sum is not.
    bias = torch.randn(3 * width) if with_bias else None
    return errors(
        target,
        lambda tokens, weight, bias, *others: fused_first_attention(
            tokens, weight.to(target.dtype), bias, *others
        )[0],
        first_attention_reference,
        (torch.randn(3, 150, width), weight, bias, 2, 0.125, num_read),
        [0, 1, 2] if with_bias else [0, 1],
    )


def embedding_errors(
    target: Target, num_prefix: int, has_table: bool, drops: bool
) -> Errors:
    """Bias, prefix tokens and positions of all tokens, or of some."""
    batch, tokens, dim = 5, 10, 48
    rank = torch.rand(batch, tokens).argsort(1).to(target.device) if drops else None
    count = 4 if drops else tokens
    prefix = torch.randn(num_prefix, dim) if num_prefix else None
    table = torch.randn(num_prefix + tokens, dim) if has_table else None

    def shaped(*tensors: Tensor) -> tuple[Any, ...]:
        features, bias, *others = tensors
        prefix = others.pop(0)[None] if num_prefix else None
        return features, bias, prefix, *(others or [None]), rank, count

    def reference(*tensors: Tensor) -> Tensor:
        features, bias, prefix, *others = shaped(*tensors)
        parts = TokenParts(features, bias, prefix)
        return embed_reference(parts, *others, torch.float64)

    given = (torch.randn(batch, tokens, dim), torch.randn(dim), prefix, table)
    inputs = [each for each in given if each is not None]
    return errors(
        target,
        lambda *tensors: fused_embedding(*shaped(*tensors), target.dtype),
        reference,
        inputs,
        range(len(inputs)),
    )


def image_windows_errors(
    target: Target,
    split: tuple[int, int, int],
    channels: int = 3,
    last: bool = False,
    gathered: bool = False,
) -> Errors:
    """The windows of an image, which gets no gradient, as squares or gathered."""
    image = torch.randn(3, channels, 29, 150).to(target.device) + 0.3
    if last:
        image = image.contiguous(memory_format=torch.channels_last)
    fused = fused_gathered_windows if gathered else fused_image_windows
    reference = gathered_windows_reference if gathered else image_windows_reference
    found = fused(image, *split, 1e-5, target.dtype)
    wanted = reference(image.double(), Split(*split), 1e-5, torch.float64)
    return {"out": [relative(*pair) for pair in zip(found, wanted, strict=True)]}


def ranks_errors(target: Target, columns: int) -> Errors:
    """Ranks within rows, of which many values are equal."""
    values = torch.rand(3, columns, device=target.device).mul(20).round()
    return {"out": [relative(fused_ranks(values), ranks_reference(values))]}


def sum_partials_errors(target: Target, parts: int) -> Errors:
    """The sum over programs; it has no gradient of its own."""
    partial = torch.randn(parts, 3, 70, device=target.device)
    with set_wrap_triton_enabled(False):
        found = sum_partials(partial)
    return {"out": [relative(found, sum_partials_reference(partial.double()))]}


def residual_norm_errors(
    target: Target,
    drops: bool,
    scale: float = 1.3,
    wide: bool = False,
    reads: slice = slice(None),
) -> Errors:
    """Residual sum and LayerNorm, with and without dropped samples."""
    batch, tokens, dim = 6, 5, 48
    kept, num_normed = (batch - 1, batch - 2) if drops else (batch, batch)
    indices: Sequence[Tensor | None] = (None, None)
    if drops:
        drawn = draw_kept_indices(batch, [kept, num_normed], torch.device("cpu"))
        indices = drawn.unbind(0)
    tensors = [torch.randn(batch, tokens, dim), torch.randn(kept, tokens, dim)]
    vectors = [torch.randn(dim) for _ in range(3)]
    return errors(
        target,
        lambda *arguments: fused_residual_norm(*arguments)[reads],
        lambda *arguments: residual_norm_reference(*arguments)[reads],
        (*tensors, *vectors, *indices, num_normed, scale, 1e-5),
        [0, 1, 2, 3, 4],
        [0] if wide else [],
    )


def norm_errors(target: Target, drops: bool) -> Errors:
    """LayerNorm only, of all samples or of those kept."""
    cpu = torch.device("cpu")
    index = draw_kept_indices(6, [4], cpu)[0] if drops else None
    return errors(
        target,
        lambda *arguments: fused_norm(*arguments, target.dtype),
        lambda *arguments: norm_reference(*arguments, torch.float64),
        (
            torch.randn(6, 5, 48),
            *(torch.randn(48) for _ in range(2)),
            *(index, 4 if drops else 6, 1e-5),
        ),
        [0, 1, 2],
    )


def gelu_errors(target: Target) -> Errors:
    """GELU and the gradient of the bias that its input includes."""
    inner = torch.randn(3, 70, 200) * 2
    # The kernel's polynomial changes its sign far from zero.
    inner[0, 0] = torch.linspace(-40, 40, 200)
    return errors(
        target,
        fused_gelu,
        lambda inner, bias: torch.nn.functional.gelu(inner + bias - bias.detach()),
        (inner, torch.randn(200)),
        [0, 1],
    )


def token_transformer_errors(target: Target, drop_rate: float, size: float) -> Errors:
    """The token transformer on keys and queries of this size per channel."""
    batch, tokens, dim = 2, 150, TOKEN_DIM
    features = torch.linalg.qr(torch.randn(dim, dim))[0][:32] * 32**0.5
    return errors(
        target,
        lambda *arguments: fused_token_transformer(*arguments)[:2],
        lambda *given: token_transformer_reference(
            Windows(*given[:5], torch.Size()), TokenWeights(*given[5:10]), *given[10:]
        ),
        (
            torch.randn(batch, tokens, 3 * dim) * size,
            torch.rand(batch, tokens) + 0.5,
            torch.randn(batch, tokens) * 0.1,
            torch.randn(3 * dim) * 0.1,
            torch.randn(3 * dim) * 0.3,
            features,
            *(torch.randn(dim, dim) * 0.1 for _ in range(3)),
            torch.randn(3, dim),
            torch.tensor(77123),
            drop_rate,
            1e-5,
        ),
        [0, 1, 4, 6, 7, 8, 9],
    )


CASES: dict[str, Callable[[Target], Errors]] = {
    **{
        f"attention of {tokens}": partial(attention_errors, tokens=tokens)
        for tokens in (16, 37, 128, 197, 257, 577)
    },
    "attention by heads of 16": partial(attention_errors, tokens=150, head=16),
    "attention by heads of 32": partial(attention_errors, tokens=70, head=32),
    "attention far below zero": partial(
        attention_errors, tokens=150, tiles=SQUARE_TILES, lowest=-400.0
    ),
    "attention of 37 far below zero": partial(
        attention_errors, tokens=37, lowest=-400.0
    ),
    "attention in wide tiles": partial(attention_errors, tokens=150, tiles=WIDE_TILES),
    "first_attention": partial(first_attention_errors, num_read=1),
    "first_attention of two with bias": partial(
        first_attention_errors, num_read=2, head=48, with_bias=True
    ),
    "embedding": partial(embedding_errors, num_prefix=1, has_table=True, drops=False),
    "embedding of some": partial(
        embedding_errors, num_prefix=2, has_table=True, drops=True
    ),
    "embedding without positions": partial(
        embedding_errors, num_prefix=0, has_table=False, drops=True
    ),
    "image_windows": partial(image_windows_errors, split=(7, 4, 2)),
    "image_windows of stride 1": partial(image_windows_errors, split=(3, 1, 1)),
    "image_windows without overlap": partial(
        image_windows_errors, split=(2, 2, 0), channels=1
    ),
    "image_windows of channels last": partial(
        image_windows_errors, split=(3, 2, 1), last=True
    ),
    "gathered_windows": partial(image_windows_errors, split=(3, 1, 1), gathered=True),
    "gathered_windows of one channel": partial(
        image_windows_errors, split=(3, 2, 0), channels=1, gathered=True
    ),
    "gathered_windows of channels last": partial(
        image_windows_errors, split=(4, 2, 1), last=True, gathered=True
    ),
    "ranks": partial(ranks_errors, columns=300),
    "ranks of few": partial(ranks_errors, columns=5),
    "sum_partials": partial(sum_partials_errors, parts=300),
    "sum_partials of few": partial(sum_partials_errors, parts=3),
    "residual_norm": partial(residual_norm_errors, drops=False),
    "residual_norm of one gradient": partial(
        residual_norm_errors, drops=False, scale=1.0
    ),
    "residual_norm whose sum is not read": partial(
        residual_norm_errors, drops=False, reads=slice(1, 2)
    ),
    "residual_norm dropping": partial(residual_norm_errors, drops=True),
    "residual_norm of a float32 stream": partial(
        residual_norm_errors, drops=True, wide=True
    ),
    "norm": partial(norm_errors, drops=False),
    "norm dropping": partial(norm_errors, drops=True),
    "gelu": gelu_errors,
    "token_transformer": partial(token_transformer_errors, drop_rate=0.0, size=1.0),
    "token_transformer dropout": partial(
        token_transformer_errors, drop_rate=0.1, size=1.0
    ),
    "token_transformer large": partial(
        token_transformer_errors, drop_rate=0.0, size=4.0
    ),
}


def errors_of(case: str, target: Target) -> Errors:
    """The errors of a case, on the same numbers whichever cases were before it."""
    torch.manual_seed(0)
    return CASES[case](target)


def main() -> None:
    """Prints the errors of all cases, or of those named on standard input."""
    device, dtype, *rest = sys.argv[1:]
    target = Target(device, getattr(torch, dtype))
    if rest != ["-"]:
        print(json.dumps({case: errors_of(case, target) for case in CASES}))
        return
    for line in sys.stdin:
        print(json.dumps(errors_of(line.strip(), target)), flush=True)


if __name__ == "__main__":
    main()
