"""Attention by positive random features, in time linear in the number of tokens."""

from contextlib import AbstractContextManager, nullcontext

import torch
from jaxtyping import Float
from torch import Tensor

from t2t.shapes import Tokens


def performer_published(
    query: Tokens,
    key: Tokens,
    value: Tokens,
    features: Float[Tensor, "features dim"],
) -> Tokens:
    """The published formula, whose denominator can underflow; for tests."""

    def positive(x: Tensor) -> Tensor:
        exponent = x @ features.T - x.square().sum(-1, keepdim=True) / 2
        return torch.exp(exponent) / features.shape[0] ** 0.5

    q, k = positive(query), positive(key)
    denominator = q @ k.sum(1).unsqueeze(-1) + 1e-8
    return q @ (k.transpose(1, 2) @ value) / denominator


def performer_attention(
    query: Tokens,
    key: Tokens,
    value: Tokens,
    features: Float[Tensor, "features dim"],
) -> Tokens:
    """The published quotient as two softmaxes, which cannot overflow or underflow.

    Each feature averages the values by a softmax over the keys' exponents; each query
    averages the features by a softmax over its exponents plus the features' log-sums.
    Factors that depend on the query alone (|q|²/2 and the count of features) cancel.
    """
    by_query, by_feature = performer_softmaxes(query, key, features)
    by_query, by_feature = by_query.to(value.dtype), by_feature.to(value.dtype)
    with full_precision(query.device):
        return by_query @ (by_feature.transpose(1, 2) @ value)


def performer_weights(
    query: Tokens, key: Tokens, features: Float[Tensor, "features dim"]
) -> Float[Tensor, "batch queries keys"]:
    """The attention map that `performer_attention` implies and never stores.

    It is φ(q)φ(k)ᵀ with each row divided by its sum.
    """
    by_query, by_feature = performer_softmaxes(query, key, features)
    with full_precision(query.device):
        return by_query @ by_feature.transpose(1, 2)


def performer_softmaxes(
    query: Tokens, key: Tokens, features: Float[Tensor, "features dim"]
) -> tuple[
    Float[Tensor, "batch queries features"], Float[Tensor, "batch keys features"]
]:
    """Each query's weights of the features, and each feature's of the keys."""
    with full_precision(query.device):
        wide = torch.promote_types(query.dtype, torch.float32)
        features, key = features.to(wide), key.to(wide)
        query_exponent = query.to(wide) @ features.T
        key_exponent = key @ features.T - key.square().sum(-1, keepdim=True) / 2
        mass = torch.logsumexp(key_exponent, dim=1, keepdim=True)
        by_query = torch.softmax(query_exponent + mass, dim=-1)
        return by_query, torch.softmax(key_exponent, dim=1)


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Switches autocast off; shape-only tensors have none."""
    if device.type == "meta":
        return nullcontext()
    return torch.autocast(device.type, enabled=False)
