"""What the token transformer's kernels share.

Every kernel reads the convolution's product (key, query and value, 64 channels each,
side by side) and makes the normalised projection of it on the way in:
x = (product − centre·mean)·rstd + offset.
"""

# mypy: ignore-errors
# Triton's functions are a language of their own, without Python's types.

import triton
import triton.language as tl


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
