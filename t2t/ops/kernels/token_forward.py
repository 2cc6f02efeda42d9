"""Forward pass of the token transformer: sums over keys, then outputs by query."""

# mypy: ignore-errors
# Triton functions have no Python types.

import triton
import triton.language as tl

from t2t.ops.kernels.gelu import gelu
from t2t.ops.kernels.token_parts import (
    DIM,
    exact_dot,
    key_exponents,
    matrix,
    part_vectors,
    projected,
    query_weights,
    random_bits,
    split_features,
    standardised,
    token_scales,
)


@triton.jit
def key_sums(
    product_ptr,
    rstd_ptr,
    mean_ptr,
    centre_ptr,
    offset_ptr,
    features_ptr,
    peak_ptr,
    mass_ptr,
    value_ptr,
    tokens,
    FEATURES: tl.constexpr,
    TILE: tl.constexpr,
):
    """Softmax sums over some of a sample's keys: maximum, mass, weighted values."""
    sample = tl.program_id(0)
    before = tl.program_id(0).to(tl.int64) * tokens
    product_ptr += before * (3 * DIM)
    rstd_ptr += before
    mean_ptr += before
    DTYPE: tl.constexpr = product_ptr.dtype.element_ty
    features = split_features(features_ptr, FEATURES, DTYPE)
    key_vectors = part_vectors(centre_ptr, offset_ptr, 0)
    value_vectors = part_vectors(centre_ptr, offset_ptr, 2)
    peak = tl.full((FEATURES,), float("-inf"), tl.float32)
    mass = tl.zeros((FEATURES,), tl.float32)
    values = tl.zeros((FEATURES, DIM), tl.float32)
    for start in range(tl.program_id(1) * TILE, tokens, tl.num_programs(1) * TILE):
        row = start + tl.arange(0, TILE)
        mask = row < tokens
        scales = token_scales(rstd_ptr, mean_ptr, row, mask)
        key = projected(product_ptr, row, mask, scales, key_vectors, 0).to(DTYPE)
        value = projected(product_ptr, row, mask, scales, value_vectors, 2).to(DTYPE)
        exponent = key_exponents(key, features)
        exponent = tl.where(mask[:, None], exponent, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(exponent, 0))
        weight = tl.exp(exponent - new_peak[None, :])
        shrink = tl.exp(peak - new_peak)
        mass = mass * shrink + tl.sum(weight, 0)
        values = values * shrink[:, None]
        values += exact_dot(tl.trans(weight.to(DTYPE)), value)
        peak = new_peak
    feature = tl.arange(0, FEATURES)
    part = sample * tl.num_programs(1) + tl.program_id(1)
    tl.store(peak_ptr + part * FEATURES + feature, peak)
    tl.store(mass_ptr + part * FEATURES + feature, mass)
    at = (part * FEATURES + feature)[:, None] * DIM + tl.arange(0, DIM)[None, :]
    tl.store(value_ptr + at, values)


@triton.jit
def token_forward(
    product_ptr,
    rstd_ptr,
    mean_ptr,
    centre_ptr,
    offset_ptr,
    features_ptr,
    log_mass_ptr,
    means_ptr,
    proj_ptr,
    fc1_ptr,
    fc2_ptr,
    biases_ptr,
    seed_ptr,
    hidden_ptr,
    out_ptr,
    moments_ptr,
    tokens,
    drop_below,
    keep_scale,
    EPS: tl.constexpr,
    DROPOUT: tl.constexpr,
    FEATURES: tl.constexpr,
    TILE: tl.constexpr,
):
    """Queries, quotient, proj, skip, LayerNorm and MLP of some of a sample's tokens."""
    keep_scale = tl.cast(keep_scale, tl.float32)
    sample = tl.program_id(0)
    before = tl.program_id(0).to(tl.int64) * tokens
    product_ptr += before * (3 * DIM)
    rstd_ptr += before
    mean_ptr += before
    hidden_ptr += before * DIM
    out_ptr += before * DIM
    moments_ptr += before * 2
    DTYPE: tl.constexpr = product_ptr.dtype.element_ty
    channel = tl.arange(0, DIM)
    features = split_features(features_ptr, FEATURES, DTYPE)
    query_vectors = part_vectors(centre_ptr, offset_ptr, 1)
    value_vectors = part_vectors(centre_ptr, offset_ptr, 2)
    log_mass = tl.load(log_mass_ptr + sample * FEATURES + tl.arange(0, FEATURES))
    means = matrix(means_ptr + sample * FEATURES * DIM, FEATURES, DIM).to(DTYPE)
    proj = tl.trans(matrix(proj_ptr, DIM, DIM).to(DTYPE))
    fc1 = tl.trans(matrix(fc1_ptr, DIM, DIM).to(DTYPE))
    fc2 = tl.trans(matrix(fc2_ptr, DIM, DIM).to(DTYPE))
    proj_bias = tl.load(biases_ptr + channel)
    fc1_bias = tl.load(biases_ptr + DIM + channel)
    fc2_bias = tl.load(biases_ptr + 2 * DIM + channel)
    for start in range(tl.program_id(1) * TILE, tokens, tl.num_programs(1) * TILE):
        row = start + tl.arange(0, TILE)
        mask = row < tokens
        scales = token_scales(rstd_ptr, mean_ptr, row, mask)
        query = projected(product_ptr, row, mask, scales, query_vectors, 1).to(DTYPE)
        value = projected(product_ptr, row, mask, scales, value_vectors, 2)
        weight = query_weights(query, features, log_mass)
        mixed = exact_dot(weight.to(DTYPE), means)
        hidden = exact_dot(mixed.to(DTYPE), proj) + proj_bias[None, :]
        if DROPOUT:
            bits = random_bits(tl.load(seed_ptr), sample * tokens + row)
            kept = (bits & 0xFFFF).to(tl.int32) >= drop_below
            hidden = tl.where(kept, hidden * keep_scale, 0.0)
        hidden = (hidden + value).to(DTYPE)
        at = row[:, None] * DIM + channel[None, :]
        tl.store(hidden_ptr + at, hidden, mask=mask[:, None])
        hidden = hidden.to(tl.float32)
        unit, _ = standardised(hidden, EPS)
        inner = exact_dot(unit.to(DTYPE), fc1) + fc1_bias[None, :]
        out = exact_dot(gelu(inner).to(DTYPE), fc2) + fc2_bias[None, :]
        if DROPOUT:
            kept = (bits >> 16).to(tl.int32) >= drop_below
            out = tl.where(kept, out * keep_scale, 0.0)
        out = (out + hidden).to(DTYPE)
        tl.store(out_ptr + at, out, mask=mask[:, None])
        out = out.to(tl.float32)
        tl.store(moments_ptr + row * 2, tl.sum(out, 1), mask=mask)
        tl.store(moments_ptr + row * 2 + 1, tl.sum(out * out, 1), mask=mask)


@triton.jit
def merge_key_sums(
    peak_ptr,
    mass_ptr,
    value_ptr,
    log_mass_ptr,
    means_ptr,
    parts,
    FEATURES: tl.constexpr,
):
    """One program: the sums over all parts of a sample, as log-mass and means."""
    sample = tl.program_id(0)
    feature = tl.arange(0, FEATURES)
    channel = tl.arange(0, DIM)
    highest = tl.full((FEATURES,), float("-inf"), tl.float32)
    for part in range(parts):
        at = (sample * parts + part) * FEATURES + feature
        highest = tl.maximum(highest, tl.load(peak_ptr + at))
    mass = tl.zeros((FEATURES,), tl.float32)
    value = tl.zeros((FEATURES, DIM), tl.float32)
    for part in range(parts):
        at = (sample * parts + part) * FEATURES + feature
        factor = tl.exp(tl.load(peak_ptr + at) - highest)
        mass += tl.load(mass_ptr + at) * factor
        here = value_ptr + at[:, None] * DIM + channel[None, :]
        value += tl.load(here) * factor[:, None]
    at = sample * FEATURES + feature
    tl.store(log_mass_ptr + at, highest + tl.log(mass))
    at = means_ptr + at[:, None] * DIM + channel[None, :]
    tl.store(at, value / mass[:, None])
