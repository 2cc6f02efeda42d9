"""Attention rollout, and other maps of what the head of a model attends to."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from t2t.analysis.attention_maps import AttentionLayer, Map, num_attention_blocks
from t2t.errors import UserError
from t2t.models.token_grid import Grid
from t2t.models.vit import VisionTransformer


def num_tokens_read(model: nn.Module) -> int:
    """How many of the prefix tokens the head reads; 0 if it reads the image's tokens.

    They come first: class token and distillation token, then those that it ignores.
    """
    if isinstance(model, VisionTransformer):
        return model.config.num_prefix_tokens if model.config.pool == "class" else 0
    if getattr(model, "global_pool", "token") != "token":
        return 0
    num_read = 2 if getattr(model, "dist_token", None) is not None else 1
    return min(num_read, int(getattr(model, "num_prefix_tokens", 0) or 0))


def rollout(
    layers: Sequence[AttentionLayer], *, num_read: int, up_to: int | None = None
) -> Map:
    """Attention through the first `up_to` blocks, or all, relative to its mean.

    It starts after those blocks at the tokens that the head reads, the first `num_read`
    or, for 0, all of the image's, and goes back to the tokens that enter the first.
    Heads are averaged, and each block's skip counts as much as its attention. Layers
    that are not blocks do not count.
    """
    blocks = [layer for layer in layers if layer.is_block][:up_to]
    if len({(layer.grid, layer.num_prefix) for layer in blocks}) != 1:
        raise UserError(
            "Attention rollout needs one or more blocks with the same tokens."
        )
    share = share_read(blocks[-1], num_read)
    for layer in reversed(blocks):
        share = (share + share @ layer.weights.double().mean(0)) / 2
    return relative(share[blocks[0].num_prefix :], blocks[0].grid)


def rollouts(
    layers: Sequence[AttentionLayer], *, num_read: int
) -> Float[Tensor, "blocks choices rows columns"]:
    """`rollout` up to each block: of all heads first, then of each head alone.

    A head alone is the head of that number in every block; blocks with different
    numbers of heads give the rollout of all heads alone.
    """
    blocks = [layer for layer in layers if layer.is_block]
    kinds = {(each.grid, each.num_prefix) for each in blocks}
    if len(kinds) != 1:
        raise UserError(
            "Attention rollout needs one or more blocks with the same tokens."
        )
    num_heads = {len(each.weights) for each in blocks}
    choices = [each.weights.mean(0, keepdim=True) for each in blocks]
    if len(num_heads) == 1 and num_heads != {1}:
        pairs = zip(choices, blocks, strict=True)
        choices = [torch.cat([mean, each.weights]) for mean, each in pairs]
    first = share_read(blocks[0], num_read).float().repeat(len(choices[0]), 1)
    shares = first.new_zeros(0, *first.shape)  # blocks that have been started from
    for weights in reversed(choices):
        shares = torch.cat([first[None], shares])
        shares = (shares + torch.einsum("bhq,hqk->bhk", shares, weights)) / 2
    of_image = shares[..., blocks[0].num_prefix :]
    return (of_image / of_image.mean(-1, keepdim=True).clamp(min=1e-30)).unflatten(
        -1, blocks[0].grid
    )


def has_rollout(layers: Sequence[AttentionLayer], model: nn.Module) -> bool:
    """Whether every block has a map, all of them over the same tokens."""
    blocks = [layer for layer in layers if layer.is_block]
    tokens = {(layer.grid, layer.num_prefix) for layer in blocks}
    return len(tokens) == 1 and len(blocks) == num_attention_blocks(model)


def attention_from_output(
    layer: AttentionLayer, *, num_read: int, head: int | None = None
) -> Map:
    """One layer's attention from what the head of the model reads, over its mean.

    Of one attention head, counted from 0, or averaged over them; `num_read` as for
    `rollout`.
    """
    weights = layer.weights.double()
    weights = weights.mean(0) if head is None else weights[head]
    share = share_read(layer, min(num_read, layer.num_prefix)) @ weights
    return relative(share[layer.num_prefix :], layer.grid)


def share_read(layer: AttentionLayer, num_read: int) -> Float[Tensor, " tokens"]:
    """The share of each token in what the head of the model reads; the sum is 1."""
    share = torch.zeros(layer.weights.shape[1], dtype=torch.float64)
    if num_read:
        share[:num_read] = 1 / num_read
    else:
        share[layer.num_prefix :] = 1 / (len(share) - layer.num_prefix)
    return share


def relative(share: Float[Tensor, " tokens"], grid: Grid) -> Map:
    """A map of shares divided by their mean."""
    return (share / share.mean().clamp(min=1e-30)).float().unflatten(0, grid)
