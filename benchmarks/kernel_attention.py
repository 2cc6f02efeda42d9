"""Settings of attention: tiles, forward and backward."""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import torch
from kernel_settings import Setting, Tensors, on_gpu
from torch import Tensor

from t2t.ops.attention import backward_by, backward_launch, forward_by
from t2t.ops.attention_tiles import BackwardTiles, Tiles
from t2t.ops.kernels.attention_backward import key_gradients, query_gradients


class Heads(NamedTuple):
    """A shape of attention, named by what has it."""

    title: str
    batch: int
    num_heads: int
    tokens: int

    @property
    def scale(self) -> float:
        return 0.125

    def __str__(self) -> str:
        return f"{self.title}: {self.batch} × {self.num_heads} × {self.tokens}"


HEADS = (
    Heads("T2T-ViT-14", 243, 6, 197),
    Heads("CIFAR", 973, 4, 256),
    Heads("CIFAR, half of the tokens", 973, 4, 128),
    Heads("CIFAR, class token", 512, 4, 257),
    Heads("384 px", 64, 6, 577),
)
TILES = [
    *(Tiles(64, 64, 4, stages) for stages in (2, 3)),
    *(Tiles(64, 32, 4, stages) for stages in (2, 3)),
    *(Tiles(128, 64, 8, stages) for stages in (2, 3)),
    *(Tiles(128, 32, 8, stages) for stages in (2, 3)),
]
TALL = [Tiles(64, 128, 4, 2), Tiles(128, 64, 4, 2)]
"""Those whose registers do for the forward pass alone."""


class Attention(NamedTuple):
    """What attention reads, and where `exact` what it should write, in float64."""

    qkv: Tensor
    grad_out: Tensor
    out: Tensor
    log_sum: Tensor
    wanted: tuple[Tensor, Tensor, Tensor, Tensor] | None


@cache
def attention_tensors(heads: Heads, exact: bool) -> Attention:
    """Packed tokens, the output's gradient, the output and the rows' log-sums."""
    dim = heads.num_heads * 64
    qkv = on_gpu(heads.batch, heads.tokens, 3 * dim)
    grad_out = on_gpu(heads.batch, heads.tokens, dim)
    if not exact:
        log_sum = on_gpu(*heads[1:], dtype=torch.float32)
        return Attention(qkv, grad_out, grad_out, log_sum, None)
    parts = [
        attention_in_float64(one, grad, heads)
        for one, grad in zip(qkv.split(32), grad_out.split(32), strict=True)
    ]
    out, log_sum, grad, inner = (torch.cat(part) for part in zip(*parts, strict=True))
    return Attention(
        *(qkv, grad_out, out.to(qkv.dtype), log_sum.float()),
        (out, log_sum, grad, inner),
    )


def attention_in_float64(qkv: Tensor, grad_out: Tensor, heads: Heads) -> Tensors:
    """Output, base-2 log-sums, packed gradient, and sums of out·grad_out by head."""
    qkv = qkv.double().requires_grad_()
    q, k, v = qkv.unflatten(2, (3, heads.num_heads, 64)).permute(2, 0, 3, 1, 4)
    logits = q @ k.transpose(-2, -1) * heads.scale
    mixed = logits.softmax(-1) @ v
    out = mixed.transpose(1, 2).flatten(2)
    (grad,) = torch.autograd.grad(out, qkv, grad_out.double())
    by_head = (out.detach() * grad_out).unflatten(2, (heads.num_heads, 64))
    log_sum = logits.detach().logsumexp(-1) / torch.log(torch.tensor(2.0).double())
    return out.detach(), log_sum, grad, by_head.sum(-1).transpose(1, 2)


def attention(exact: bool) -> Iterator[Setting]:
    """Forward, then the two launches of the backward pass one by one."""
    for heads in HEADS:
        packed = 6 * heads.batch * heads.tokens * heads.num_heads * 64
        for tiles in (*TILES, *TALL):
            yield attention_forward(heads, tiles, packed * 4 // 3, exact)
        for tiles in TILES:
            for queries in (True, False):
                yield attention_half(heads, tiles, queries, packed * 2, exact)


def attention_forward(
    heads: Heads, tiles: Tiles, num_bytes: int, exact: bool
) -> Setting:
    """Output and log-sums."""

    def run() -> Tensors:
        tensors = attention_tensors(heads, exact)
        return forward_by(tiles, tensors.qkv, heads.num_heads, heads.scale)

    def wanted() -> Tensors:
        return attention_tensors(heads, True).wanted[:2]

    return Setting("attention forward", str(heads), repr(tiles), num_bytes, run, wanted)


def attention_backward(
    heads: Heads,
    tiles: BackwardTiles,
    num_bytes: int,
    exact: bool,
) -> Setting:
    """The gradients of queries, keys and values."""

    def run() -> Tensors:
        qkv, grad_out, out, log_sum, _ = attention_tensors(heads, exact)
        grad = backward_by(
            tiles, qkv, out, log_sum, grad_out, heads.num_heads, heads.scale
        )
        return grad.chunk(3, 2)

    def wanted() -> Tensors:
        return attention_tensors(heads, True).wanted[2].chunk(3, 2)

    return Setting(
        "attention backward", str(heads), repr(tiles), num_bytes, run, wanted
    )


def attention_half(
    heads: Heads, tiles: Tiles, queries: bool, num_bytes: int, exact: bool
) -> Setting:
    """One of the two launches of the backward pass."""

    def run() -> Tensors:
        qkv, grad_out, out, log_sum, _ = attention_tensors(heads, exact)
        inner = torch.empty_like(log_sum)
        if not queries:
            inner = wanted_sums(heads) if exact else log_sum
        grad = torch.empty_like(qkv)
        tensors = (qkv, out, log_sum, grad_out, inner, grad)
        kernel = query_gradients if queries else key_gradients
        backward_launch(kernel, tiles, tensors, heads.scale)
        q, k, v = grad.chunk(3, 2)
        return (q, inner) if queries else (k, v)

    def wanted() -> Tensors:
        _, _, grad, inner = attention_tensors(heads, True).wanted
        q, k, v = grad.chunk(3, 2)
        return (q, inner) if queries else (k, v)

    which = "queries" if queries else "keys"
    return Setting(
        *(f"attention backward of {which}", str(heads), repr(tiles)),
        *(num_bytes, run, wanted),
    )


@cache
def wanted_sums(heads: Heads) -> Tensor:
    """Sums of out·grad_out as the queries' launch leaves them for the keys'."""
    return attention_tensors(heads, True).wanted[3].float().contiguous()


def attention_pairs(best: dict[tuple[str, str], str]) -> Iterator[Setting]:
    """Both launches, each with the tiles that were its best."""
    for heads in HEADS:
        names = [f"attention backward of {which}" for which in ("queries", "keys")]
        if all((name, str(heads)) in best for name in names):
            known = {repr(tiles): tiles for tiles in TILES}
            tiles = BackwardTiles(*(known[best[name, str(heads)]] for name in names))
            num_bytes = 16 * heads.batch * heads.tokens * heads.num_heads * 64
            yield attention_backward(heads, tiles, num_bytes, True)
