"""Times attention on a GPU beside torch's backends, over tokens and head sizes.

    python benchmarks/attention_peers.py --out rows.json

Passes run from CUDA graphs, so the host does not limit them; all read packed q, k, v
and return packed gradients. `error` is the largest relative error of output and
gradient against float64. Our kernels are timed on every shape, also on those that the
package leaves to torch.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from kept_rows import keep_rows
from replay import replayed, room_to_flush
from torch import Tensor
from torch._library.triton import set_wrap_triton_enabled
from torch.nn.attention import SDPBackend, sdpa_kernel

from t2t.ops.attention import (
    attention_reference,
    has_kernel,
    packed_backward,
    packed_forward,
)

NUM_TOKENS = 2**17
"""In a batch, for any length of sequence."""
SHAPES = [
    *((tokens, 64) for tokens in (65, 128, 197, 256, 257, 320, 401, 577, 785, 1025)),
    *((tokens, head) for head in (16, 32, 128) for tokens in (128, 256, 257)),
]
WIDTH = 384
"""Channels of all heads together, or a little more."""
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
Pass = Callable[[], Tensor]


def passes(by: str, qkv: Tensor, grad_out: Tensor, num_heads: int) -> tuple[Pass, Pass]:
    """Forward, and forward with backward, by our kernels or one of torch's."""
    scale = (qkv.shape[2] / 3 / num_heads) ** -0.5
    if by == "ours":

        def forward() -> Tensor:
            return packed_forward(qkv, num_heads, scale)[0]

        def both() -> Tensor:
            out, log_sum = packed_forward(qkv, num_heads, scale)
            return packed_backward(qkv, out, log_sum, grad_out, num_heads, scale)

        return forward, both
    backend = BACKENDS[by]

    def peer() -> Tensor:
        with torch.no_grad(), sdpa_kernel(backend):
            return attention_reference(qkv, num_heads, scale)

    def peer_both() -> Tensor:
        leaf = qkv.detach().requires_grad_()
        with sdpa_kernel(backend):
            out = attention_reference(leaf, num_heads, scale)
            (grad,) = torch.autograd.grad(out, leaf, grad_out)
        return grad

    return peer, peer_both


def exact(qkv: Tensor, grad_out: Tensor, num_heads: int) -> tuple[Tensor, Tensor]:
    """Output and packed gradient of the first images, in float64."""
    leaf = qkv.double().requires_grad_()
    q, k, v = leaf.unflatten(2, (3, num_heads, -1)).permute(2, 0, 3, 1, 4)
    mixed = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v
    out = mixed.transpose(1, 2).flatten(2)
    (grad,) = torch.autograd.grad(out, leaf, grad_out.double())
    return out.detach(), grad


def microseconds(run: Pass, flush: Tensor) -> float:
    """The median of what single replays take."""
    for _ in range(2):
        run()
    return round(median(replayed(run, flush)), 1)


def measure(tokens: int, head: int, flush: Tensor) -> list[dict[str, Any]]:
    """A row for ours and for each of torch's; a failed one holds its error."""
    batch, num_heads = NUM_TOKENS // tokens, -(-WIDTH // head)
    dim = num_heads * head
    torch.manual_seed(0)
    like = {"device": "cuda", "dtype": torch.bfloat16}
    qkv = torch.randn(batch, tokens, 3 * dim, **like)
    grad_out = torch.randn(batch, tokens, dim, **like)
    some = min(batch, 8)
    wanted = exact(qkv[:some], grad_out[:some], num_heads)
    rows = []
    for by in ("ours", *BACKENDS):
        row: dict[str, Any] = {
            "tokens": tokens,
            "head": head,
            "batch": batch,
            "heads": num_heads,
            "by": by,
            "taken": by == "ours" and has_kernel(qkv, num_heads),
        }
        try:
            forward, both = passes(by, qkv, grad_out, num_heads)
            found = (forward()[:some], both()[:some])
            pairs = zip(found, wanted, strict=True)
            errors = [float((one - two).norm() / two.norm()) for one, two in pairs]
            row["error"] = max(errors)
            row["forward_us"] = microseconds(forward, flush)
            row["both_us"] = microseconds(both, flush)
        except Exception as error:
            row["failed"] = type(error).__name__
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="where rows are written as JSON")
    options = parser.parse_args()
    flush = room_to_flush()
    rows = []
    for tokens, head in SHAPES:
        # The kernels themselves, without telling the compiler.
        with set_wrap_triton_enabled(False):
            measured = measure(tokens, head, flush)
        for row in measured:
            rows.append(row)
            print(json.dumps(row), flush=True)
        keep_rows(options.out, rows)


if __name__ == "__main__":
    main()
