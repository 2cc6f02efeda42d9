"""Attention of short sequences straight from the packed q, k, v of a linear."""

# mypy: ignore-errors
# Triton's functions are a language of their own, without Python's types.

import triton
import triton.language as tl

from t2t.ops.kernels.attention_parts import (
    LOG2_E,
    head_offsets,
    product_of,
    rows_of,
    store_numbers,
    store_rows,
)


@triton.jit
def logits_of(q, k, first, TOKENS: tl.constexpr):
    """q·kᵀ, minus infinity past the last key."""
    logits = product_of(q, tl.trans(k))
    KEYS: tl.constexpr = k.shape[0]
    if first + KEYS > TOKENS:
        real = first + tl.arange(0, KEYS) < TOKENS
        logits = tl.where(real[None, :], logits, float("-inf"))
    return logits


@triton.jit
def key_pieces_of(
    pointer,
    stride,
    TOKENS: tl.constexpr,
    HEAD: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    THIRD: tl.constexpr,
):
    """All tokens' share of one head in up to three pieces; the first fills in."""
    SO_FAR: tl.constexpr = FIRST + SECOND
    piece = rows_of(pointer, 0, stride, FIRST, HEAD, TOKENS, FIRST > TOKENS)
    piece2, piece3 = piece, piece
    if SECOND > 0:
        MASK2: tl.constexpr = SO_FAR > TOKENS
        piece2 = rows_of(pointer, FIRST, stride, SECOND, HEAD, TOKENS, MASK2)
    if THIRD > 0:
        MASK3: tl.constexpr = SO_FAR + THIRD > TOKENS
        piece3 = rows_of(pointer, SO_FAR, stride, THIRD, HEAD, TOKENS, MASK3)
    return piece, piece2, piece3


@triton.jit
def mix_held(
    q,
    keys,
    values,
    factor,
    TOKENS: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    THIRD: tl.constexpr,
):
    """Weighted values, the sum of weights and the peak logit, for keys held at once."""
    k, k2, k3 = keys
    v, v2, v3 = values
    logits = logits_of(q, k, 0, TOKENS)
    peak = tl.max(logits, 1)
    if SECOND > 0:
        logits2 = logits_of(q, k2, FIRST, TOKENS)
        peak = tl.maximum(peak, tl.max(logits2, 1))
    if THIRD > 0:
        logits3 = logits_of(q, k3, FIRST + SECOND, TOKENS)
        peak = tl.maximum(peak, tl.max(logits3, 1))
    # The factor is positive: scaling after the maximum makes one multiply-add of it.
    peak *= factor
    weights = tl.exp2(logits * factor - peak[:, None])
    total = tl.sum(weights, 1)
    mixed = product_of(weights.to(v.dtype), v)
    if SECOND > 0:
        weights = tl.exp2(logits2 * factor - peak[:, None])
        total += tl.sum(weights, 1)
        mixed = tl.dot(weights.to(v.dtype), v2, mixed, input_precision="ieee")
    if THIRD > 0:
        weights = tl.exp2(logits3 * factor - peak[:, None])
        total += tl.sum(weights, 1)
        mixed = tl.dot(weights.to(v.dtype), v3, mixed, input_precision="ieee")
    return mixed, total, peak


@triton.jit
def mix_more(
    sums,
    q,
    bases,
    first,
    stride,
    factor,
    TOKENS: tl.constexpr,
    KEYS: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Adds KEYS keys, rescaling what is there where the peak rises."""
    mixed, total, peak = sums
    HEAD: tl.constexpr = q.shape[1]
    k = rows_of(bases[0], first, stride, KEYS, HEAD, TOKENS, MASKED)
    v = rows_of(bases[1], first, stride, KEYS, HEAD, TOKENS, MASKED)
    logits = product_of(q, tl.trans(k))
    if MASKED:
        real = first + tl.arange(0, KEYS) < TOKENS
        logits = tl.where(real[None, :], logits, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(logits, 1) * factor)
    weights = tl.exp2(logits * factor - new_peak[:, None])
    shrink = tl.exp2(peak - new_peak)
    total = total * shrink + tl.sum(weights, 1)
    mixed = mixed * shrink[:, None]
    mixed = tl.dot(weights.to(v.dtype), v, mixed, input_precision="ieee")
    return mixed, total, new_peak


@triton.jit
def store_mixed(
    out_base,
    log_sum_base,
    sums,
    start,
    width,
    TOKENS: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Writes the output and the log-sums of some queries."""
    mixed, total, peak = sums
    mixed = mixed * (1.0 / total)[:, None]
    store_rows(out_base, mixed, start, width, TOKENS, MASKED)
    store_numbers(log_sum_base, peak + tl.log2(total), start, TOKENS, MASKED)


@triton.jit
def attend_streamed(
    pointers,
    start,
    factor,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    LAST_KEYS: tl.constexpr,
    STAGES: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Output and log-sums of QUERIES queries, to which the keys come in tiles."""
    base, out_base, log_sum_base = pointers
    WIDTH: tl.constexpr = HEADS * HEAD
    STRIDE: tl.constexpr = 3 * WIDTH
    bases = (base + WIDTH, base + 2 * WIDTH)
    q = rows_of(base, start, STRIDE, QUERIES, HEAD, TOKENS, MASKED)
    mixed = tl.zeros(q.shape, tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    peak = tl.full((QUERIES,), float("-inf"), tl.float32)
    WHOLE: tl.constexpr = TOKENS // KEYS * KEYS
    for first in tl.range(0, WHOLE, KEYS, num_stages=STAGES):
        mixed, total, peak = mix_more(
            (mixed, total, peak), q, bases, first, STRIDE, factor, TOKENS, KEYS, False
        )
    if WHOLE < TOKENS:
        mixed, total, peak = mix_more(
            *((mixed, total, peak), q, bases, WHOLE, STRIDE, factor, TOKENS),
            *(LAST_KEYS, True),
        )
    sums = (mixed, total, peak)
    store_mixed(out_base, log_sum_base, sums, start, WIDTH, TOKENS, MASKED)


@triton.jit
def attention_forward_held(
    qkv_ptr,
    out_ptr,
    log_sum_ptr,
    scale,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    THIRD: tl.constexpr,
    QUERIES: tl.constexpr,
    PARTS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """One program: every PARTSth tile of queries of one head, its keys held at once."""
    factor = tl.cast(scale, tl.float32) * LOG2_E
    which = tl.program_id(0) // PARTS
    part = tl.program_id(0) % PARTS
    packed, alone, number = head_offsets(which, TOKENS, HEADS, HEAD)
    base = qkv_ptr + packed
    out_base = out_ptr + alone
    log_sum_base = log_sum_ptr + number
    WIDTH: tl.constexpr = HEADS * HEAD
    STRIDE: tl.constexpr = 3 * WIDTH
    k = key_pieces_of(base + WIDTH, STRIDE, TOKENS, HEAD, FIRST, SECOND, THIRD)
    v = key_pieces_of(base + 2 * WIDTH, STRIDE, TOKENS, HEAD, FIRST, SECOND, THIRD)
    MASKED: tl.constexpr = TOKENS % QUERIES != 0
    for start in tl.range(part * QUERIES, TOKENS, PARTS * QUERIES, num_stages=STAGES):
        q = rows_of(base, start, STRIDE, QUERIES, HEAD, TOKENS, MASKED)
        sums = mix_held(q, k, v, factor, TOKENS, FIRST, SECOND, THIRD)
        store_mixed(out_base, log_sum_base, sums, start, WIDTH, TOKENS, MASKED)


@triton.jit
def attention_forward_streamed(
    qkv_ptr,
    out_ptr,
    log_sum_ptr,
    scale,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    QUERIES: tl.constexpr,
    LAST_QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    LAST_KEYS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """One program: a tile of queries of one head, to which its keys come in tiles."""
    factor = tl.cast(scale, tl.float32) * LOG2_E
    WHOLE: tl.constexpr = TOKENS // QUERIES
    PARTS: tl.constexpr = (TOKENS + QUERIES - 1) // QUERIES
    which = tl.program_id(0) // PARTS
    part = tl.program_id(0) % PARTS
    packed, alone, number = head_offsets(which, TOKENS, HEADS, HEAD)
    pointers = (qkv_ptr + packed, out_ptr + alone, log_sum_ptr + number)
    start = part * QUERIES
    if part < WHOLE:
        attend_streamed(
            *(pointers, start, factor),
            *(TOKENS, HEADS, HEAD, QUERIES, KEYS, LAST_KEYS, STAGES, False),
        )
    elif WHOLE < PARTS:
        attend_streamed(
            *(pointers, start, factor),
            *(TOKENS, HEADS, HEAD, LAST_QUERIES, KEYS, LAST_KEYS, STAGES, True),
        )
