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
    with full_precision(query.device):
        wide = torch.promote_types(query.dtype, torch.float32)
        features, key = features.to(wide), key.to(wide)
        query_exponent = query.to(wide) @ features.T
        key_exponent = key @ features.T - key.square().sum(-1, keepdim=True) / 2
        mass = torch.logsumexp(key_exponent, dim=1, keepdim=True)
        by_feature = torch.softmax(key_exponent, dim=1).to(value.dtype)
        by_query = torch.softmax(query_exponent + mass, dim=-1).to(value.dtype)
        return by_query @ (by_feature.transpose(1, 2) @ value)


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Switches autocast off; shape-only tensors have none."""
    if device.type == "meta":
        return nullcontext()
    return torch.autocast(device.type, enabled=False)
