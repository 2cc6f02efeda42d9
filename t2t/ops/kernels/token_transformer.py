"""The Performer token transformer after a soft split, five passes over its tokens.

Every kernel reads the convolution's product (key, query and value, 64 channels each,
side by side) and makes the normalised projection of it on the way in:
x = (product − centre·mean)·rstd + offset.
"""

import triton
import triton.language as tl

from t2t.ops.kernels.gelu import gelu, normal_cdf, normal_density


@triton.jit
def projected(product_ptr, place, real, scales, vectors, PART: tl.constexpr):
    """One part (0 key, 1 query, 2 value) of the tokens' projection, in float32."""
    rstd, mean_rstd = scales
    centre, offset = vectors
    column = PART * 64 + tl.arange(0, 64)
    at = place[:, None] * 192 + column[None, :]
    product = tl.load(product_ptr + at, mask=real[:, None], other=0.0).to(tl.float32)
    shift = offset[None, :] - centre[None, :] * mean_rstd[:, None]
    return product * rstd[:, None] + shift


@triton.jit
def token_scales(rstd_ptr, mean_ptr, place, real):
    """Reciprocal deviation of the tokens' windows, alone and times their mean."""
    rstd = tl.load(rstd_ptr + place, mask=real, other=1.0)
    return rstd, rstd * tl.load(mean_ptr + place, mask=real, other=0.0)


@triton.jit
def part_vectors(centre_ptr, offset_ptr, PART: tl.constexpr):
    """Centre and offset of one part of the projection."""
    column = PART * 64 + tl.arange(0, 64)
    return tl.load(centre_ptr + column), tl.load(offset_ptr + column)


@triton.jit
def matrix(pointer, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A whole small matrix, row by row in memory."""
    row = tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    return tl.load(pointer + row[:, None] * COLUMNS + column[None, :])


@triton.jit
def product_of(left, right):
    """A matrix product whose float32 operands, used only by tests, are not rounded."""
    return tl.dot(left, right, input_precision="ieee")


@triton.jit
def split_features(features_ptr, FEATURES: tl.constexpr, KIND: tl.constexpr):
    """The features in two parts of half precision, since exponents magnify rounding."""
    features = matrix(features_ptr, FEATURES, 64)
    high = features.to(KIND)
    return high, (features - high.to(tl.float32)).to(KIND)


@triton.jit
def exponents(x, features):
    """x·wᵀ from both parts of w."""
    high, low = features
    total = tl.dot(x, tl.trans(high), input_precision="ieee")
    return tl.dot(x, tl.trans(low), total, input_precision="ieee")


@triton.jit
def key_exponents(key, features):
    """k·wᵀ − |k|²/2."""
    wide = key.to(tl.float32)
    return exponents(key, features) - tl.sum(wide * wide, 1)[:, None] * 0.5


@triton.jit
def query_weights(query, features, log_mass):
    """How much of each feature's mean value a query takes."""
    exponent = exponents(query, features) + log_mass[None, :]
    weight = tl.exp(exponent - tl.max(exponent, 1)[:, None])
    return weight / tl.sum(weight, 1)[:, None]


@triton.jit
def column_sums(total, x):
    """Adds the sums over rows to each row of `total`: by a product, not by shuffles."""
    ones = tl.full((16, x.shape[0]), 1.0, x.dtype)
    return tl.dot(ones, x, total, input_precision="ieee")


@triton.jit
def store_sums(pointer, total):
    """One row of what `column_sums` gathered."""
    tl.store(pointer + tl.arange(0, 64), tl.sum(total, 0) / 16)


@triton.jit
def random_bits(seed, token):
    """32 random bits for each of a token's 64 channels, the same in every pass."""
    index = token.to(tl.uint32)[:, None] * 64 + tl.arange(0, 64).to(tl.uint32)[None, :]
    bits = index + seed.to(tl.uint32) * 0x9E3779B9
    bits ^= bits >> 16
    bits *= 0x7FEB352D
    bits ^= bits >> 15
    bits *= 0x846CA68B
    bits ^= bits >> 16
    return bits


@triton.jit
def standardised(x, EPS: tl.constexpr):
    """Rows less their mean, over their deviation; and one over the deviation."""
    centred = x - (tl.sum(x, 1) / 64)[:, None]
    rstd = tl.rsqrt(tl.sum(centred * centred, 1) / 64 + EPS)
    return centred * rstd[:, None], rstd


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
    """Softmax sums over some of a sample's keys: peak, mass, weighted values."""
    sample = tl.program_id(0)
    before = tl.program_id(0).to(tl.int64) * tokens
    product_ptr += before * 192
    rstd_ptr += before
    mean_ptr += before
    KIND: tl.constexpr = product_ptr.dtype.element_ty
    features = split_features(features_ptr, FEATURES, KIND)
    key_vectors = part_vectors(centre_ptr, offset_ptr, 0)
    value_vectors = part_vectors(centre_ptr, offset_ptr, 2)
    peak = tl.full((FEATURES,), float("-inf"), tl.float32)
    mass = tl.zeros((FEATURES,), tl.float32)
    values = tl.zeros((FEATURES, 64), tl.float32)
    for start in range(tl.program_id(1) * TILE, tokens, tl.num_programs(1) * TILE):
        place = start + tl.arange(0, TILE)
        real = place < tokens
        scales = token_scales(rstd_ptr, mean_ptr, place, real)
        key = projected(product_ptr, place, real, scales, key_vectors, 0).to(KIND)
        value = projected(product_ptr, place, real, scales, value_vectors, 2).to(KIND)
        exponent = key_exponents(key, features)
        exponent = tl.where(real[:, None], exponent, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(exponent, 0))
        weight = tl.exp(exponent - new_peak[None, :])
        shrink = tl.exp(peak - new_peak)
        mass = mass * shrink + tl.sum(weight, 0)
        values = values * shrink[:, None]
        values += product_of(tl.trans(weight.to(KIND)), value)
        peak = new_peak
    feature = tl.arange(0, FEATURES)
    part = sample * tl.num_programs(1) + tl.program_id(1)
    tl.store(peak_ptr + part * FEATURES + feature, peak)
    tl.store(mass_ptr + part * FEATURES + feature, mass)
    at = (part * FEATURES + feature)[:, None] * 64 + tl.arange(0, 64)[None, :]
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
    product_ptr += before * 192
    rstd_ptr += before
    mean_ptr += before
    hidden_ptr += before * 64
    out_ptr += before * 64
    moments_ptr += before * 2
    KIND: tl.constexpr = product_ptr.dtype.element_ty
    channel = tl.arange(0, 64)
    features = split_features(features_ptr, FEATURES, KIND)
    query_vectors = part_vectors(centre_ptr, offset_ptr, 1)
    value_vectors = part_vectors(centre_ptr, offset_ptr, 2)
    log_mass = tl.load(log_mass_ptr + sample * FEATURES + tl.arange(0, FEATURES))
    means = matrix(means_ptr + sample * FEATURES * 64, FEATURES, 64).to(KIND)
    proj = tl.trans(matrix(proj_ptr, 64, 64).to(KIND))
    fc1 = tl.trans(matrix(fc1_ptr, 64, 64).to(KIND))
    fc2 = tl.trans(matrix(fc2_ptr, 64, 64).to(KIND))
    proj_bias = tl.load(biases_ptr + channel)
    fc1_bias = tl.load(biases_ptr + 64 + channel)
    fc2_bias = tl.load(biases_ptr + 128 + channel)
    for start in range(tl.program_id(1) * TILE, tokens, tl.num_programs(1) * TILE):
        place = start + tl.arange(0, TILE)
        real = place < tokens
        scales = token_scales(rstd_ptr, mean_ptr, place, real)
        query = projected(product_ptr, place, real, scales, query_vectors, 1).to(KIND)
        value = projected(product_ptr, place, real, scales, value_vectors, 2)
        weight = query_weights(query, features, log_mass)
        mixed = product_of(weight.to(KIND), means)
        hidden = product_of(mixed.to(KIND), proj) + proj_bias[None, :]
        if DROPOUT:
            bits = random_bits(tl.load(seed_ptr), sample * tokens + place)
            kept = (bits & 0xFFFF).to(tl.int32) >= drop_below
            hidden = tl.where(kept, hidden * keep_scale, 0.0)
        hidden = (hidden + value).to(KIND)
        at = place[:, None] * 64 + channel[None, :]
        tl.store(hidden_ptr + at, hidden, mask=real[:, None])
        hidden = hidden.to(tl.float32)
        unit, _ = standardised(hidden, EPS)
        inner = product_of(unit.to(KIND), fc1) + fc1_bias[None, :]
        out = product_of(gelu(inner).to(KIND), fc2) + fc2_bias[None, :]
        if DROPOUT:
            kept = (bits >> 16).to(tl.int32) >= drop_below
            out = tl.where(kept, out * keep_scale, 0.0)
        out = (out + hidden).to(KIND)
        tl.store(out_ptr + at, out, mask=real[:, None])
        out = out.to(tl.float32)
        tl.store(moments_ptr + place * 2, tl.sum(out, 1), mask=real)
        tl.store(moments_ptr + place * 2 + 1, tl.sum(out * out, 1), mask=real)


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
    """From the output's gradient to the one of the sum before LayerNorm."""
    keep_scale = tl.cast(keep_scale, tl.float32)
    KIND: tl.constexpr = hidden_ptr.dtype.element_ty
    channel = tl.arange(0, 64)
    fc1 = matrix(fc1_ptr, 64, 64).to(KIND)
    fc2 = matrix(fc2_ptr, 64, 64).to(KIND)
    fc1_bias = tl.load(biases_ptr + 64 + channel)
    grad_fc1 = tl.zeros((64, 64), tl.float32)
    grad_fc2 = tl.zeros((64, 64), tl.float32)
    grad_fc1_bias = tl.zeros((16, 64), tl.float32)
    grad_fc2_bias = tl.zeros((16, 64), tl.float32)
    for start in range(tl.program_id(0) * TILE, total, tl.num_programs(0) * TILE):
        token = start + tl.arange(0, TILE)
        real = token < total
        at = tl.arange(0, TILE)[:, None] * 64 + channel[None, :]
        at += tl.cast(start, tl.int64) * 64
        hidden = tl.load(hidden_ptr + at, mask=real[:, None], other=0.0).to(tl.float32)
        grad = tl.load(grad_out_ptr + at, mask=real[:, None], other=0.0).to(tl.float32)
        out = tl.load(out_ptr + at, mask=real[:, None], other=0.0).to(tl.float32)
        first = tl.load(grad_moments_ptr + token * 2, mask=real, other=0.0)
        second = tl.load(grad_moments_ptr + token * 2 + 1, mask=real, other=0.0)
        grad += first[:, None] + out * (2.0 * second)[:, None]
        grad_tail = grad
        if DROPOUT:
            bits = random_bits(tl.load(seed_ptr), token)
            kept = (bits >> 16).to(tl.int32) >= drop_below
            grad_tail = tl.where(kept, grad * keep_scale, 0.0)
        grad_tail = grad_tail.to(KIND)
        grad_fc2_bias = column_sums(grad_fc2_bias, grad_tail)
        unit, rstd = standardised(hidden, EPS)
        rounded = unit.to(KIND)
        inner = product_of(rounded, tl.trans(fc1)) + fc1_bias[None, :]
        below = normal_cdf(inner)
        grad_fc2 += product_of(tl.trans(grad_tail), (inner * below).to(KIND))
        grad_inner = product_of(grad_tail, fc2)
        grad_inner *= below + inner * normal_density(inner)
        grad_inner = grad_inner.to(KIND)
        grad_fc1_bias = column_sums(grad_fc1_bias, grad_inner)
        grad_fc1 += product_of(tl.trans(grad_inner), rounded)
        grad_unit = product_of(grad_inner, fc1)
        along = tl.sum(grad_unit * unit, 1) / 64
        level = tl.sum(grad_unit, 1) / 64
        grad += (grad_unit - level[:, None] - unit * along[:, None]) * rstd[:, None]
        tl.store(grad_hidden_ptr + at, grad.to(KIND), mask=real[:, None])
    base = partial_ptr + tl.program_id(0) * 8320
    square = channel[:, None] * 64 + channel[None, :]
    tl.store(base + square, grad_fc1)
    tl.store(base + 4096 + square, grad_fc2)
    store_sums(base + 8192, grad_fc1_bias)
    store_sums(base + 8256, grad_fc2_bias)


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
    """From the sum's gradient to the queries', and to the keys' sums."""
    keep_scale = tl.cast(keep_scale, tl.float32)
    sample = tl.program_id(0)
    before = tl.program_id(0).to(tl.int64) * tokens
    product_ptr += before * 192
    rstd_ptr += before
    mean_ptr += before
    grad_hidden_ptr += before * 64
    grad_product_ptr += before * 192
    grad_scale_ptr += before
    KIND: tl.constexpr = product_ptr.dtype.element_ty
    channel = tl.arange(0, 64)
    feature = tl.arange(0, FEATURES)
    features = split_features(features_ptr, FEATURES, KIND)
    vectors = part_vectors(centre_ptr, offset_ptr, 1)
    log_mass = tl.load(log_mass_ptr + sample * FEATURES + feature)
    means = matrix(means_ptr + sample * FEATURES * 64, FEATURES, 64).to(KIND)
    proj = matrix(proj_ptr, 64, 64).to(KIND)
    grad_proj = tl.zeros((64, 64), tl.float32)
    grad_proj_bias = tl.zeros((16, 64), tl.float32)
    grad_offset = tl.zeros((16, 64), tl.float32)
    grad_means = tl.zeros((FEATURES, 64), tl.float32)
    grad_mass = tl.zeros((FEATURES,), tl.float32)
    for start in range(tl.program_id(1) * TILE, tokens, tl.num_programs(1) * TILE):
        place = start + tl.arange(0, TILE)
        real = place < tokens
        scales = token_scales(rstd_ptr, mean_ptr, place, real)
        query = projected(product_ptr, place, real, scales, vectors, 1).to(KIND)
        weight = query_weights(query, features, log_mass)
        rounded = weight.to(KIND)
        mixed = product_of(rounded, means).to(KIND)
        at = place[:, None] * 64 + channel[None, :]
        grad = tl.load(grad_hidden_ptr + at, mask=real[:, None], other=0.0)
        grad = grad.to(tl.float32)
        if DROPOUT:
            bits = random_bits(tl.load(seed_ptr), sample * tokens + place)
            kept = (bits & 0xFFFF).to(tl.int32) >= drop_below
            grad = tl.where(kept, grad * keep_scale, 0.0)
        grad = grad.to(KIND)
        grad_proj_bias = column_sums(grad_proj_bias, grad)
        grad_proj += product_of(tl.trans(grad), mixed)
        grad_mixed = product_of(grad, proj).to(KIND)
        grad_means += product_of(tl.trans(rounded), grad_mixed)
        grad_weight = product_of(grad_mixed, tl.trans(means))
        inner = tl.sum(grad_weight * weight, 1)
        grad_exponent = weight * (grad_weight - inner[:, None])
        grad_mass += tl.sum(grad_exponent, 0)
        grad_query = product_of(grad_exponent.to(KIND), features[0])
        grad_offset = column_sums(grad_offset, grad_query.to(KIND))
        if NEED_RSTD:
            scaled = query.to(tl.float32) - vectors[1][None, :]
            tl.store(grad_scale_ptr + place, tl.sum(grad_query * scaled, 1), mask=real)
        tl.store(
            grad_product_ptr + place[:, None] * 192 + 64 + channel[None, :],
            (grad_query * scales[0][:, None]).to(KIND),
            mask=real[:, None],
        )
    part = sample * tl.num_programs(1) + tl.program_id(1)
    base = partial_ptr + part * 4224
    tl.store(base + channel[:, None] * 64 + channel[None, :], grad_proj)
    store_sums(base + 4096, grad_proj_bias)
    store_sums(base + 4160, grad_offset)
    tl.store(grad_mass_ptr + part * FEATURES + feature, grad_mass)
    at = (part * FEATURES + feature)[:, None] * 64 + channel[None, :]
    tl.store(grad_means_ptr + at, grad_means)


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
    """From the gradients of the keys' sums to the keys' and the values'."""
    sample = tl.program_id(0)
    before = tl.program_id(0).to(tl.int64) * tokens
    product_ptr += before * 192
    rstd_ptr += before
    mean_ptr += before
    grad_hidden_ptr += before * 64
    grad_product_ptr += before * 192
    grad_scale_ptr += before
    grad_rstd_ptr += before
    KIND: tl.constexpr = product_ptr.dtype.element_ty
    channel = tl.arange(0, 64)
    feature = tl.arange(0, FEATURES)
    features = split_features(features_ptr, FEATURES, KIND)
    key_vectors = part_vectors(centre_ptr, offset_ptr, 0)
    value_vectors = part_vectors(centre_ptr, offset_ptr, 2)
    log_mass = tl.load(log_mass_ptr + sample * FEATURES + feature)
    grad_shift = tl.load(grad_shift_ptr + sample * FEATURES + feature)
    grad_means = matrix(grad_means_ptr + sample * FEATURES * 64, FEATURES, 64).to(KIND)
    key_offset = tl.zeros((16, 64), tl.float32)
    value_offset = tl.zeros((16, 64), tl.float32)
    for start in range(tl.program_id(1) * TILE, tokens, tl.num_programs(1) * TILE):
        place = start + tl.arange(0, TILE)
        real = place < tokens
        scales = token_scales(rstd_ptr, mean_ptr, place, real)
        key = projected(product_ptr, place, real, scales, key_vectors, 0).to(KIND)
        value = projected(product_ptr, place, real, scales, value_vectors, 2).to(KIND)
        exponent = key_exponents(key, features) - log_mass[None, :]
        weight = tl.exp(tl.where(real[:, None], exponent, float("-inf")))
        grad_value = product_of(weight.to(KIND), grad_means)
        at = place[:, None] * 64 + channel[None, :]
        skip = tl.load(grad_hidden_ptr + at, mask=real[:, None], other=0.0)
        grad_value += skip.to(tl.float32)
        value_offset = column_sums(value_offset, grad_value.to(KIND))
        out_at = grad_product_ptr + place[:, None] * 192 + channel[None, :]
        tl.store(
            out_at + 128,
            (grad_value * scales[0][:, None]).to(KIND),
            mask=real[:, None],
        )
        grad_exponent = product_of(value, tl.trans(grad_means))
        grad_exponent = weight * (grad_exponent + grad_shift[None, :])
        grad_key = product_of(grad_exponent.to(KIND), features[0])
        grad_key -= key.to(tl.float32) * tl.sum(grad_exponent, 1)[:, None]
        key_offset = column_sums(key_offset, grad_key.to(KIND))
        tl.store(
            out_at, (grad_key * scales[0][:, None]).to(KIND), mask=real[:, None]
        )
        if NEED_RSTD:
            scaled = key.to(tl.float32) - key_vectors[1][None, :]
            along = tl.sum(grad_key * scaled, 1)
            scaled = value.to(tl.float32) - value_vectors[1][None, :]
            along += tl.sum(grad_value * scaled, 1)
            along += tl.load(grad_scale_ptr + place, mask=real, other=0.0)
            tl.store(grad_rstd_ptr + place, along / scales[0], mask=real)
    part = sample * tl.num_programs(1) + tl.program_id(1)
    base = partial_ptr + part * 128
    store_sums(base, key_offset)
    store_sums(base + 64, value_offset)
