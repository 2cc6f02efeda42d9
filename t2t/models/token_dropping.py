"""Some of the tokens of each image."""

import torch
from jaxtyping import Int64
from torch import Tensor

from t2t.ops.ranks import ranks
from t2t.shapes import Tokens

TokenNumbers = Int64[Tensor, "batch kept"]
"""Numbers of tokens of each image, without the prefix tokens."""


def drop_tokens(tokens: Tokens, num_prefix: int, share: float) -> Tokens:
    """The prefix tokens and a random share of each image's other tokens."""
    num_tokens = tokens.shape[1] - num_prefix
    count = num_kept(num_tokens, share)
    order = torch.rand(len(tokens), num_tokens, device=tokens.device).argsort(1)
    return keep_rows(tokens, num_prefix, order[:, :count])


def keep_rows(tokens: Tokens, num_prefix: int, kept: TokenNumbers) -> Tokens:
    """The prefix tokens and the given ones of each image's other tokens."""
    prefix, image = tokens[:, :num_prefix], tokens[:, num_prefix:]
    return torch.cat([prefix, take_rows(image, kept)], dim=1)


def take_rows(tokens: Tokens, rows: TokenNumbers) -> Tokens:
    """Tokens of each image by their numbers, which must all be different."""
    batch, num_tokens, _ = tokens.shape
    first = torch.arange(batch, device=tokens.device)[:, None] * num_tokens
    taken: Tensor = TakeRows.apply(tokens.flatten(0, 1), (first + rows).flatten())
    return taken.unflatten(0, rows.shape)


def num_kept(num_tokens: int, share: float) -> int:
    """How many of an image's tokens are kept."""
    return max(1, round(num_tokens * share))


def draw_ranks(batch: int, num_tokens: int, device: torch.device) -> Tensor:
    """The place of each token in a random order of its image's tokens."""
    return ranks(torch.rand(batch, num_tokens, device=device))


class TakeRows(torch.autograd.Function):
    """Rows of a matrix, all different, so that gradients need no atomic adds."""

    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx, matrix: Tensor, rows: Tensor
    ) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.num_rows = matrix.shape[0]
        return matrix.index_select(0, rows)

    @staticmethod
    def backward(  # type: ignore[no-untyped-def]
        ctx, grad: Tensor
    ) -> tuple[Tensor, None]:
        (rows,) = ctx.saved_tensors
        full = grad.new_zeros(ctx.num_rows, grad.shape[1])
        return full.index_copy(0, rows, grad), None
