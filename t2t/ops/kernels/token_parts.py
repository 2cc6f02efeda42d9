"""Functions that the token transformer's kernels share.

Every kernel loads the convolution's product (key, query and value, DIM channels each,
side by side) and computes the normalised projection from it:
x = (product − centre·mean)·rstd + offset.
"""

# mypy: ignore-errors
# Triton functions have no Python types.

import triton
import triton.language as tl

from t2t.ops.kernels.numbers import TOKEN_DIM

DIM = tl.constexpr(TOKEN_DIM)
# The fewest rows that a matrix product takes.
SUM_ROWS = tl.constexpr(16)


@triton.jit
def projected(product_ptr, row, mask, scales, vectors, PART: tl.constexpr):
    """One part (0 key, 1 query, 2 value) of the projected tokens, in float32."""
    rstd, mean_rstd = scales
    centre, offset = vectors
    column = PART * DIM + tl.arange(0, DIM)
    at = row[:, None] * (3 * DIM) + column[None, :]
    product = tl.load(product_ptr + at, mask=mask[:, None], other=0.0).to(tl.float32)
    shift = offset[None, :] - centre[None, :] * mean_rstd[:, None]
    return product * rstd[:, None] + shift


@triton.jit
def token_scales(rstd_ptr, mean_ptr, row, mask):
    """1/deviation of each token's window, and the same times its mean."""
    rstd = tl.load(rstd_ptr + row, mask=mask, other=1.0)
    return rstd, rstd * tl.load(mean_ptr + row, mask=mask, other=0.0)


@triton.jit
def part_vectors(centre_ptr, offset_ptr, PART: tl.constexpr):
    """Centre and offset of one part of the projection."""
    column = PART * DIM + tl.arange(0, DIM)
    return tl.load(centre_ptr + column), tl.load(offset_ptr + column)


@triton.jit
def matrix(pointer, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A whole row-major matrix."""
    row = tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    return tl.load(pointer + row[:, None] * COLUMNS + column[None, :])


@triton.jit
def exact_dot(left, right):
    """A matrix product whose float32 operands, used only by tests, are not rounded."""
    return tl.dot(left, right, input_precision="ieee")


@triton.jit
def split_features(features_ptr, FEATURES: tl.constexpr, DTYPE: tl.constexpr):
    """The features as a sum of two half-precision parts: exp magnifies rounding."""
    features = matrix(features_ptr, FEATURES, DIM)
    high = features.to(DTYPE)
    return high, (features - high.to(tl.float32)).to(DTYPE)


@triton.jit
def exponents(x, features):
    """x·wᵀ for w in two parts."""
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
    """The softmax weights of the features' mean values, for each query."""
    exponent = exponents(query, features) + log_mass[None, :]
    weight = tl.exp(exponent - tl.max(exponent, 1)[:, None])
    return weight / tl.sum(weight, 1)[:, None]


@triton.jit
def column_sums(total, x):
    """Adds the column sums of x to every row of `total`, by a matrix product."""
    ones = tl.full((SUM_ROWS, x.shape[0]), 1.0, x.dtype)
    return tl.dot(ones, x, total, input_precision="ieee")


@triton.jit
def store_sums(pointer, total):
    """Stores the sums that `column_sums` added up."""
    tl.store(pointer + tl.arange(0, DIM), tl.sum(total, 0) / SUM_ROWS)


@triton.jit
def random_bits(seed, token):
    """32 random bits per channel of each token, the same forward and backward."""
    channel = tl.arange(0, DIM).to(tl.uint32)
    index = token.to(tl.uint32)[:, None] * DIM + channel[None, :]
    bits = index + seed.to(tl.uint32) * 0x9E3779B9
    bits ^= bits >> 16
    bits *= 0x7FEB352D
    bits ^= bits >> 15
    bits *= 0x846CA68B
    bits ^= bits >> 16
    return bits


@triton.jit
def standardised(x, EPS: tl.constexpr):
    """Rows with mean 0 and deviation 1, and 1/deviation of each."""
    centred = x - (tl.sum(x, 1) / DIM)[:, None]
    rstd = tl.rsqrt(tl.sum(centred * centred, 1) / DIM + EPS)
    return centred * rstd[:, None], rstd
