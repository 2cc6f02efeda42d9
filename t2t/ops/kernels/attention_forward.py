"""Attention of short sequences, from packed q, k, v."""

# mypy: ignore-errors
# Triton functions have no Python types.

import triton
import triton.language as tl

from t2t.ops.kernels.attention_parts import (
    LOG2_E,
    exact_dot,
    head_offsets,
    load_rows,
    store_numbers,
    store_rows,
)


@triton.jit
def online_softmax_update(
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
    """Adds KEYS keys to the running sums, rescaled if the maximum rises."""
    mixed, total, peak = sums
    HEAD: tl.constexpr = q.shape[1]
    k = load_rows(bases[0], first, stride, KEYS, HEAD, TOKENS, MASKED)
    v = load_rows(bases[1], first, stride, KEYS, HEAD, TOKENS, MASKED)
    logits = exact_dot(q, tl.trans(k))
    if MASKED:
        mask = first + tl.arange(0, KEYS) < TOKENS
        logits = tl.where(mask[None, :], logits, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(logits, 1) * factor)
    weights = tl.exp2(logits * factor - new_peak[:, None])
    shrink = tl.exp2(peak - new_peak)
    total = total * shrink + tl.sum(weights, 1)
    mixed = mixed * shrink[:, None]
    mixed = tl.dot(weights.to(v.dtype), v, mixed, input_precision="ieee")
    return mixed, total, new_peak


@triton.jit
def store_output(
    out_base,
    log_sum_base,
    sums,
    start,
    width,
    TOKENS: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Stores the output and the log-sum-exp of some queries."""
    mixed, total, peak = sums
    mixed = mixed * (1.0 / total)[:, None]
    store_rows(out_base, mixed, start, width, TOKENS, MASKED)
    store_numbers(log_sum_base, peak + tl.log2(total), start, TOKENS, MASKED)


@triton.jit
def attend(
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
    """Output and log-sum-exp of QUERIES queries, in a loop over tiles of keys."""
    base, out_base, log_sum_base = pointers
    WIDTH: tl.constexpr = HEADS * HEAD
    STRIDE: tl.constexpr = 3 * WIDTH
    bases = (base + WIDTH, base + 2 * WIDTH)
    q = load_rows(base, start, STRIDE, QUERIES, HEAD, TOKENS, MASKED)
    mixed = tl.zeros(q.shape, tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    peak = tl.full((QUERIES,), float("-inf"), tl.float32)
    WHOLE: tl.constexpr = TOKENS // KEYS * KEYS
    for first in tl.range(0, WHOLE, KEYS, num_stages=STAGES):
        mixed, total, peak = online_softmax_update(
            (mixed, total, peak), q, bases, first, STRIDE, factor, TOKENS, KEYS, False
        )
    if WHOLE < TOKENS:
        mixed, total, peak = online_softmax_update(
            *((mixed, total, peak), q, bases, WHOLE, STRIDE, factor, TOKENS),
            *(LAST_KEYS, True),
        )
    sums = (mixed, total, peak)
    store_output(out_base, log_sum_base, sums, start, WIDTH, TOKENS, MASKED)


@triton.jit
def attention_forward(
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
    """One program: a tile of queries of one head, in a loop over tiles of keys."""
    factor = tl.cast(scale, tl.float32) * LOG2_E
    WHOLE: tl.constexpr = TOKENS // QUERIES
    PARTS: tl.constexpr = (TOKENS + QUERIES - 1) // QUERIES
    which = tl.program_id(0) // PARTS
    part = tl.program_id(0) % PARTS
    packed, unpacked, number = head_offsets(which, TOKENS, HEADS, HEAD)
    pointers = (qkv_ptr + packed, out_ptr + unpacked, log_sum_ptr + number)
    start = part * QUERIES
    if part < WHOLE:
        attend(
            *(pointers, start, factor),
            *(TOKENS, HEADS, HEAD, QUERIES, KEYS, LAST_KEYS, STAGES, False),
        )
    elif WHOLE < PARTS:
        attend(
            *(pointers, start, factor),
            *(TOKENS, HEADS, HEAD, LAST_QUERIES, KEYS, LAST_KEYS, STAGES, True),
        )
