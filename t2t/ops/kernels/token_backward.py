"""The token transformer backward: the MLP, the queries, the keys."""

# mypy: ignore-errors
# Triton functions have no Python types.

import triton
import triton.language as tl

from t2t.ops.kernels.gelu import normal_cdf, normal_density
from t2t.ops.kernels.token_parts import (
    DIM,
    SUM_ROWS,
    column_sums,
    exact_dot,
    key_exponents,
    matrix,
    part_vectors,
    projected,
    query_weights,
    random_bits,
    split_features,
    standardised,
    store_sums,
    token_scales,
)


@triton.jit
def mlp_backward(
    hidden_ptr,
    out_ptr,
    grad_out_ptr,
    grad_moments_ptr,
    fc1_ptr,
    fc2_ptr,
    biases_ptr,
    seed_ptr,
    grad_hidden_ptr,
    partial_ptr,
    total,
    drop_below,
    keep_scale,
    EPS: tl.constexpr,
    DROPOUT: tl.constexpr,
    TILE: tl.constexpr,
):
    """From the gradient of the output to that of the sum before LayerNorm."""
    keep_scale = tl.cast(keep_scale, tl.float32)
    DTYPE: tl.constexpr = hidden_ptr.dtype.element_ty
    channel = tl.arange(0, DIM)
    fc1 = matrix(fc1_ptr, DIM, DIM).to(DTYPE)
    fc2 = matrix(fc2_ptr, DIM, DIM).to(DTYPE)
    fc1_bias = tl.load(biases_ptr + DIM + channel)
    grad_fc1 = tl.zeros((DIM, DIM), tl.float32)
    grad_fc2 = tl.zeros((DIM, DIM), tl.float32)
    grad_fc1_bias = tl.zeros((SUM_ROWS, DIM), tl.float32)
    grad_fc2_bias = tl.zeros((SUM_ROWS, DIM), tl.float32)
    for start in range(tl.program_id(0) * TILE, total, tl.num_programs(0) * TILE):
        token = start + tl.arange(0, TILE)
        mask = token < total
        at = tl.arange(0, TILE)[:, None] * DIM + channel[None, :]
        at += tl.cast(start, tl.int64) * DIM
        hidden = tl.load(hidden_ptr + at, mask=mask[:, None], other=0.0).to(tl.float32)
        grad = tl.load(grad_out_ptr + at, mask=mask[:, None], other=0.0).to(tl.float32)
        out = tl.load(out_ptr + at, mask=mask[:, None], other=0.0).to(tl.float32)
        first = tl.load(grad_moments_ptr + token * 2, mask=mask, other=0.0)
        second = tl.load(grad_moments_ptr + token * 2 + 1, mask=mask, other=0.0)
        grad += first[:, None] + out * (2.0 * second)[:, None]
        grad_tail = grad
        if DROPOUT:
            bits = random_bits(tl.load(seed_ptr), token)
            kept = (bits >> 16).to(tl.int32) >= drop_below
            grad_tail = tl.where(kept, grad * keep_scale, 0.0)
        grad_tail = grad_tail.to(DTYPE)
        grad_fc2_bias = column_sums(grad_fc2_bias, grad_tail)
        unit, rstd = standardised(hidden, EPS)
        rounded = unit.to(DTYPE)
        inner = exact_dot(rounded, tl.trans(fc1)) + fc1_bias[None, :]
        below = normal_cdf(inner)
        grad_fc2 += exact_dot(tl.trans(grad_tail), (inner * below).to(DTYPE))
        grad_inner = exact_dot(grad_tail, fc2)
        grad_inner *= below + inner * normal_density(inner)
        grad_inner = grad_inner.to(DTYPE)
        grad_fc1_bias = column_sums(grad_fc1_bias, grad_inner)
        grad_fc1 += exact_dot(tl.trans(grad_inner), rounded)
        grad_unit = exact_dot(grad_inner, fc1)
        along = tl.sum(grad_unit * unit, 1) / DIM
        level = tl.sum(grad_unit, 1) / DIM
        grad += (grad_unit - level[:, None] - unit * along[:, None]) * rstd[:, None]
        tl.store(grad_hidden_ptr + at, grad.to(DTYPE), mask=mask[:, None])
    base = partial_ptr + tl.program_id(0) * (2 * DIM * DIM + 2 * DIM)
    square = channel[:, None] * DIM + channel[None, :]
    tl.store(base + square, grad_fc1)
    tl.store(base + DIM * DIM + square, grad_fc2)
    store_sums(base + 2 * DIM * DIM, grad_fc1_bias)
    store_sums(base + 2 * DIM * DIM + DIM, grad_fc2_bias)


@triton.jit
def query_backward(
    product_ptr,
    rstd_ptr,
    mean_ptr,
    centre_ptr,
    offset_ptr,
    features_ptr,
    log_mass_ptr,
    means_ptr,
    proj_ptr,
    seed_ptr,
    grad_hidden_ptr,
    grad_product_ptr,
    grad_scale_ptr,
    partial_ptr,
    grad_means_ptr,
    grad_mass_ptr,
    tokens,
    drop_below,
    keep_scale,
    NEED_RSTD: tl.constexpr,
    DROPOUT: tl.constexpr,
    FEATURES: tl.constexpr,
    TILE: tl.constexpr,
):
    """From the gradient of that sum to those of the queries and of the key sums."""
    keep_scale = tl.cast(keep_scale, tl.float32)
    sample = tl.program_id(0)
    before = tl.program_id(0).to(tl.int64) * tokens
    product_ptr += before * (3 * DIM)
    rstd_ptr += before
    mean_ptr += before
    grad_hidden_ptr += before * DIM
    grad_product_ptr += before * (3 * DIM)
    grad_scale_ptr += before
    DTYPE: tl.constexpr = product_ptr.dtype.element_ty
    channel = tl.arange(0, DIM)
    feature = tl.arange(0, FEATURES)
    features = split_features(features_ptr, FEATURES, DTYPE)
    vectors = part_vectors(centre_ptr, offset_ptr, 1)
    log_mass = tl.load(log_mass_ptr + sample * FEATURES + feature)
    means = matrix(means_ptr + sample * FEATURES * DIM, FEATURES, DIM).to(DTYPE)
    proj = matrix(proj_ptr, DIM, DIM).to(DTYPE)
    grad_proj = tl.zeros((DIM, DIM), tl.float32)
    grad_proj_bias = tl.zeros((SUM_ROWS, DIM), tl.float32)
    grad_offset = tl.zeros((SUM_ROWS, DIM), tl.float32)
    grad_means = tl.zeros((FEATURES, DIM), tl.float32)
    grad_mass = tl.zeros((FEATURES,), tl.float32)
    for start in range(tl.program_id(1) * TILE, tokens, tl.num_programs(1) * TILE):
        row = start + tl.arange(0, TILE)
        mask = row < tokens
        scales = token_scales(rstd_ptr, mean_ptr, row, mask)
        query = projected(product_ptr, row, mask, scales, vectors, 1).to(DTYPE)
        weight = query_weights(query, features, log_mass)
        rounded = weight.to(DTYPE)
        mixed = exact_dot(rounded, means).to(DTYPE)
        at = row[:, None] * DIM + channel[None, :]
        grad = tl.load(grad_hidden_ptr + at, mask=mask[:, None], other=0.0)
        grad = grad.to(tl.float32)
        if DROPOUT:
            bits = random_bits(tl.load(seed_ptr), sample * tokens + row)
            kept = (bits & 0xFFFF).to(tl.int32) >= drop_below
            grad = tl.where(kept, grad * keep_scale, 0.0)
        grad = grad.to(DTYPE)
        grad_proj_bias = column_sums(grad_proj_bias, grad)
        grad_proj += exact_dot(tl.trans(grad), mixed)
        grad_mixed = exact_dot(grad, proj).to(DTYPE)
        grad_means += exact_dot(tl.trans(rounded), grad_mixed)
        grad_weight = exact_dot(grad_mixed, tl.trans(means))
        inner = tl.sum(grad_weight * weight, 1)
        grad_exponent = weight * (grad_weight - inner[:, None])
        grad_mass += tl.sum(grad_exponent, 0)
        grad_query = exact_dot(grad_exponent.to(DTYPE), features[0])
        grad_offset = column_sums(grad_offset, grad_query.to(DTYPE))
        if NEED_RSTD:
            scaled = query.to(tl.float32) - vectors[1][None, :]
            tl.store(grad_scale_ptr + row, tl.sum(grad_query * scaled, 1), mask=mask)
        tl.store(
            grad_product_ptr + row[:, None] * (3 * DIM) + DIM + channel[None, :],
            (grad_query * scales[0][:, None]).to(DTYPE),
            mask=mask[:, None],
        )
    part = sample * tl.num_programs(1) + tl.program_id(1)
    base = partial_ptr + part * (DIM * DIM + 2 * DIM)
    tl.store(base + channel[:, None] * DIM + channel[None, :], grad_proj)
    store_sums(base + DIM * DIM, grad_proj_bias)
    store_sums(base + DIM * DIM + DIM, grad_offset)
    tl.store(grad_mass_ptr + part * FEATURES + feature, grad_mass)
    at = (part * FEATURES + feature)[:, None] * DIM + channel[None, :]
    tl.store(grad_means_ptr + at, grad_means)


@triton.jit
def merge_gradients(
    part_means_ptr,
    part_mass_ptr,
    means_ptr,
    grad_means_ptr,
    grad_shift_ptr,
    parts,
    FEATURES: tl.constexpr,
):
    """One program: the gradients of a sample's key sums, over all parts."""
    sample = tl.program_id(0)
    feature = tl.arange(0, FEATURES)
    channel = tl.arange(0, DIM)
    mass = tl.zeros((FEATURES,), tl.float32)
    grad = tl.zeros((FEATURES, DIM), tl.float32)
    for part in range(parts):
        at = (sample * parts + part) * FEATURES + feature
        mass += tl.load(part_mass_ptr + at)
        grad += tl.load(part_means_ptr + at[:, None] * DIM + channel[None, :])
    at = sample * FEATURES + feature
    matrix_at = at[:, None] * DIM + channel[None, :]
    means = tl.load(means_ptr + matrix_at)
    tl.store(grad_means_ptr + matrix_at, grad)
    tl.store(grad_shift_ptr + at, mass - tl.sum(means * grad, 1))


@triton.jit
def key_backward(
    product_ptr,
    rstd_ptr,
    mean_ptr,
    centre_ptr,
    offset_ptr,
    features_ptr,
    log_mass_ptr,
    grad_means_ptr,
    grad_shift_ptr,
    grad_hidden_ptr,
    grad_product_ptr,
    grad_scale_ptr,
    grad_rstd_ptr,
    partial_ptr,
    tokens,
    NEED_RSTD: tl.constexpr,
    FEATURES: tl.constexpr,
    TILE: tl.constexpr,
):
    """From the gradients of the key sums to those of keys and values."""
    sample = tl.program_id(0)
    before = tl.program_id(0).to(tl.int64) * tokens
    product_ptr += before * (3 * DIM)
    rstd_ptr += before
    mean_ptr += before
    grad_hidden_ptr += before * DIM
    grad_product_ptr += before * (3 * DIM)
    grad_scale_ptr += before
    grad_rstd_ptr += before
    DTYPE: tl.constexpr = product_ptr.dtype.element_ty
    channel = tl.arange(0, DIM)
    feature = tl.arange(0, FEATURES)
    features = split_features(features_ptr, FEATURES, DTYPE)
    key_vectors = part_vectors(centre_ptr, offset_ptr, 0)
    value_vectors = part_vectors(centre_ptr, offset_ptr, 2)
    log_mass = tl.load(log_mass_ptr + sample * FEATURES + feature)
    grad_shift = tl.load(grad_shift_ptr + sample * FEATURES + feature)
    grad_means = matrix(grad_means_ptr + sample * FEATURES * DIM, FEATURES, DIM).to(
        DTYPE
    )
    key_offset = tl.zeros((SUM_ROWS, DIM), tl.float32)
    value_offset = tl.zeros((SUM_ROWS, DIM), tl.float32)
    for start in range(tl.program_id(1) * TILE, tokens, tl.num_programs(1) * TILE):
        row = start + tl.arange(0, TILE)
        mask = row < tokens
        scales = token_scales(rstd_ptr, mean_ptr, row, mask)
        key = projected(product_ptr, row, mask, scales, key_vectors, 0).to(DTYPE)
        value = projected(product_ptr, row, mask, scales, value_vectors, 2).to(DTYPE)
        exponent = key_exponents(key, features) - log_mass[None, :]
        weight = tl.exp(tl.where(mask[:, None], exponent, float("-inf")))
        grad_value = exact_dot(weight.to(DTYPE), grad_means)
        at = row[:, None] * DIM + channel[None, :]
        skip = tl.load(grad_hidden_ptr + at, mask=mask[:, None], other=0.0)
        grad_value += skip.to(tl.float32)
        value_offset = column_sums(value_offset, grad_value.to(DTYPE))
        out_at = grad_product_ptr + row[:, None] * (3 * DIM) + channel[None, :]
        tl.store(
            out_at + 2 * DIM,
            (grad_value * scales[0][:, None]).to(DTYPE),
            mask=mask[:, None],
        )
        grad_exponent = exact_dot(value, tl.trans(grad_means))
        grad_exponent = weight * (grad_exponent + grad_shift[None, :])
        grad_key = exact_dot(grad_exponent.to(DTYPE), features[0])
        grad_key -= key.to(tl.float32) * tl.sum(grad_exponent, 1)[:, None]
        key_offset = column_sums(key_offset, grad_key.to(DTYPE))
        tl.store(out_at, (grad_key * scales[0][:, None]).to(DTYPE), mask=mask[:, None])
        if NEED_RSTD:
            scaled = key.to(tl.float32) - key_vectors[1][None, :]
            along = tl.sum(grad_key * scaled, 1)
            scaled = value.to(tl.float32) - value_vectors[1][None, :]
            along += tl.sum(grad_value * scaled, 1)
            along += tl.load(grad_scale_ptr + row, mask=mask, other=0.0)
            tl.store(grad_rstd_ptr + row, along / scales[0], mask=mask)
    part = sample * tl.num_programs(1) + tl.program_id(1)
    base = partial_ptr + part * (2 * DIM)
    store_sums(base, key_offset)
    store_sums(base + DIM, value_offset)
