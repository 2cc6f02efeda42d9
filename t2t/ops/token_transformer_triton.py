"""Launches the token transformer's kernels."""

from functools import partial

import torch
from torch import Tensor

from t2t.ops.kernels.numbers import TOKEN_DIM
from t2t.ops.partial_sums import sum_partials

TILE = 64
"""Tokens that a program computes at a time."""
SQUARE = TOKEN_DIM * TOKEN_DIM
MLP_SUMS = (SQUARE, SQUARE, TOKEN_DIM, TOKEN_DIM)
"""Sizes of the gradients that `mlp_backward` sums: fc1, fc2 and their biases."""
QUERY_SUMS = (SQUARE, TOKEN_DIM, TOKEN_DIM)
"""The same for `query_backward`: proj, its bias and the offset of queries."""
KEY_SUMS = (TOKEN_DIM, TOKEN_DIM)
"""The same for `key_backward`: the offsets of keys and of values."""


def num_parts(batch: int, tokens: int) -> int:
    """Programs per sample, so that a small batch also fills a large GPU."""
    return max(1, min(-(-tokens // TILE), -(-1024 // batch)))


def dropout_numbers(drop_rate: float) -> tuple[int, float]:
    """The 16-bit draw below which a value is dropped, and the scale of kept values.

    At the highest rate one draw in 65536 still keeps a value.
    """
    below = min(round(drop_rate * 65536), 65535)
    return below, 65536 / (65536 - below)


def fused_forward(
    product: Tensor,
    rstd: Tensor,
    mean: Tensor,
    centre: Tensor,
    offset: Tensor,
    features: Tensor,
    proj: Tensor,
    fc1: Tensor,
    fc2: Tensor,
    biases: Tensor,
    seed: Tensor,
    drop_rate: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Output, moments, and for the backward pass: hidden, features' log-mass, means."""
    from t2t.ops.kernels.launch import launch
    from t2t.ops.kernels.token_forward import (
        key_sums,
        merge_key_sums,
        token_forward,
    )

    product, rstd, mean, features, proj, fc1, fc2, biases = (
        tensor.contiguous()
        for tensor in (product, rstd, mean, features, proj, fc1, fc2, biases)
    )
    batch, tokens, _ = product.shape
    num_features = features.shape[0]
    parts = num_parts(batch, tokens)
    single = partial(torch.empty, dtype=torch.float32, device=product.device)
    peak = single(batch, parts, num_features)
    mass = single(batch, parts, num_features)
    value = single(batch, parts, num_features, TOKEN_DIM)
    inputs = (product, rstd, mean, centre, offset, features)
    launch(key_sums)[(batch, parts)](
        *inputs,
        peak,
        mass,
        value,
        tokens,
        FEATURES=num_features,
        TILE=TILE,
        num_warps=4,
    )
    log_mass = single(batch, num_features)
    means = single(batch, num_features, TOKEN_DIM)
    launch(merge_key_sums)[(batch,)](
        *(peak, mass, value, log_mass, means, parts),
        FEATURES=num_features,
        num_warps=4,
    )
    hidden = product.new_empty(batch, tokens, TOKEN_DIM)
    out = product.new_empty(batch, tokens, TOKEN_DIM)
    moments = single(batch, tokens, 2)
    below, keep_scale = dropout_numbers(drop_rate)
    launch(token_forward)[(batch, parts)](
        *inputs,
        log_mass,
        means,
        proj,
        fc1,
        fc2,
        biases,
        seed,
        hidden,
        out,
        moments,
        tokens,
        below,
        keep_scale,
        EPS=eps,
        DROPOUT=below > 0,
        FEATURES=num_features,
        TILE=TILE,
        num_warps=4,
        num_stages=2,
    )
    return out, moments, hidden, log_mass, means


def fused_backward(
    product: Tensor,
    rstd: Tensor,
    mean: Tensor,
    centre: Tensor,
    offset: Tensor,
    features: Tensor,
    proj: Tensor,
    fc1: Tensor,
    fc2: Tensor,
    biases: Tensor,
    seed: Tensor,
    out: Tensor,
    hidden: Tensor,
    log_mass: Tensor,
    means: Tensor,
    grad_out: Tensor,
    grad_moments: Tensor,
    drop_rate: float,
    eps: float,
    need_rstd: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of product, rstd (if needed), and the sums for `weight_gradients`."""
    from t2t.ops.kernels.launch import launch
    from t2t.ops.kernels.token_backward import (
        key_backward,
        merge_gradients,
        mlp_backward,
        query_backward,
    )

    product, rstd, mean, features, proj, fc1, fc2, biases = (
        tensor.contiguous()
        for tensor in (product, rstd, mean, features, proj, fc1, fc2, biases)
    )
    grad_out, grad_moments = grad_out.contiguous(), grad_moments.contiguous()
    batch, tokens, _ = product.shape
    num_features = features.shape[0]
    parts = num_parts(batch, tokens)
    single = partial(torch.empty, dtype=torch.float32, device=product.device)
    below, keep_scale = dropout_numbers(drop_rate)
    grad_hidden = torch.empty_like(hidden)
    programs = min(264, -(-batch * tokens // TILE))
    mlp_partial = single(programs, sum(MLP_SUMS))
    launch(mlp_backward)[(programs,)](
        hidden,
        out,
        grad_out,
        grad_moments,
        fc1,
        fc2,
        biases,
        seed,
        grad_hidden,
        mlp_partial,
        batch * tokens,
        below,
        keep_scale,
        DROPOUT=below > 0,
        EPS=eps,
        TILE=TILE,
        num_warps=4,
        num_stages=2,
    )
    inputs = (product, rstd, mean, centre, offset, features, log_mass)
    grad_product = torch.empty_like(product)
    grad_scale = single(batch, tokens)
    query_partial = single(batch * parts, sum(QUERY_SUMS))
    part_means = single(batch, parts, num_features, TOKEN_DIM)
    part_mass = single(batch, parts, num_features)
    launch(query_backward)[(batch, parts)](
        *inputs,
        means,
        proj,
        seed,
        grad_hidden,
        grad_product,
        grad_scale,
        query_partial,
        part_means,
        part_mass,
        tokens,
        below,
        keep_scale,
        DROPOUT=below > 0,
        NEED_RSTD=need_rstd,
        FEATURES=num_features,
        TILE=TILE,
        num_warps=4,
    )
    grad_means, grad_shift = torch.empty_like(means), torch.empty_like(log_mass)
    launch(merge_gradients)[(batch,)](
        *(part_means, part_mass, means, grad_means, grad_shift, parts),
        FEATURES=num_features,
        num_warps=4,
    )
    grad_rstd = single(batch, tokens)
    key_partial = single(batch * parts, sum(KEY_SUMS))
    launch(key_backward)[(batch, parts)](
        *inputs,
        grad_means,
        grad_shift,
        grad_hidden,
        grad_product,
        grad_scale,
        grad_rstd,
        key_partial,
        tokens,
        NEED_RSTD=need_rstd,
        FEATURES=num_features,
        TILE=TILE,
        num_warps=4,
    )
    return (
        grad_product,
        grad_rstd,
        sum_partials(mlp_partial),
        sum_partials(query_partial),
        sum_partials(key_partial),
    )


def weight_gradients(
    mlp: Tensor, query: Tensor, key: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of offset, proj, fc1, fc2 and the biases, from the kernels' sums."""
    fc1, fc2, *mlp_biases = mlp.split(MLP_SUMS)
    proj, proj_bias, query_offset = query.split(QUERY_SUMS)
    key_offset, value_offset = key.split(KEY_SUMS)
    return (
        torch.cat([key_offset, query_offset, value_offset]),
        *(each.view(TOKEN_DIM, TOKEN_DIM) for each in (proj, fc1, fc2)),
        torch.stack([proj_bias, *mlp_biases]),
    )
