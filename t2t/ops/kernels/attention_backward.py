"""Gradients of attention, tile by tile, for packed q, k, v.

`query_gradients` loops over all keys for a tile of queries, `key_gradients` over all
queries for a tile of keys. Attention weights are computed twice, but there are no
atomic adds, and accumulators are small enough for several programs per multiprocessor.
`query_gradients` runs first and stores the sums of out·grad_out that `key_gradients`
needs. Programs of one head are launched together, so that its tokens stay in the cache.
"""

# mypy: ignore-errors
# Triton functions have no Python types.

import triton
import triton.language as tl

from t2t.ops.kernels.attention_parts import (
    LOG2_E,
    exact_dot,
    head_offsets,
    load_numbers,
    load_rows,
    store_numbers,
    store_rows,
)


@triton.jit
def add_queries(
    sums,
    k,
    v,
    pointers,
    start,
    factor,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    QUERIES: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Adds the contribution of QUERIES queries to gradients of keys and values."""
    grad_k, grad_v = sums
    base, _, grad_out_base, log_sum_base, inner_base, _ = pointers
    HEAD: tl.constexpr = k.shape[1]
    WIDTH: tl.constexpr = HEADS * HEAD
    q = load_rows(base, start, 3 * WIDTH, QUERIES, HEAD, TOKENS, MASKED)
    grad_out = load_rows(grad_out_base, start, WIDTH, QUERIES, HEAD, TOKENS, MASKED)
    # Keys × queries: both sums over queries then read the weights without transposing.
    logits = exact_dot(k, tl.trans(q))
    grad_weights = exact_dot(v, tl.trans(grad_out))
    log_sum = load_numbers(log_sum_base, start, QUERIES, TOKENS, MASKED)
    inner = load_numbers(inner_base, start, QUERIES, TOKENS, MASKED)
    # Past the last query q and grad_out are zero: they add nothing.
    weights = tl.exp2(logits * factor - log_sum[None, :])
    grad_v = tl.dot(weights.to(v.dtype), grad_out, grad_v, input_precision="ieee")
    grad_logits = (weights * (grad_weights - inner[None, :])).to(k.dtype)
    grad_k = tl.dot(grad_logits, q, grad_k, input_precision="ieee")
    return grad_k, grad_v


@triton.jit
def gradients_of_keys(
    pointers,
    first,
    scale,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    KEYS: tl.constexpr,
    QUERIES: tl.constexpr,
    LAST_QUERIES: tl.constexpr,
    STAGES: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Gradients of KEYS keys and values, in a loop over tiles of queries."""
    base, _, _, _, _, grad_base = pointers
    WIDTH: tl.constexpr = HEADS * HEAD
    STRIDE: tl.constexpr = 3 * WIDTH
    factor = scale * LOG2_E
    k = load_rows(base + WIDTH, first, STRIDE, KEYS, HEAD, TOKENS, MASKED)
    v = load_rows(base + 2 * WIDTH, first, STRIDE, KEYS, HEAD, TOKENS, MASKED)
    grad_k = tl.zeros((KEYS, HEAD), tl.float32)
    grad_v = tl.zeros((KEYS, HEAD), tl.float32)
    WHOLE: tl.constexpr = TOKENS // QUERIES * QUERIES
    for start in tl.range(0, WHOLE, QUERIES, num_stages=STAGES):
        grad_k, grad_v = add_queries(
            *((grad_k, grad_v), k, v, pointers, start, factor),
            *(TOKENS, HEADS, QUERIES, False),
        )
    if WHOLE < TOKENS:
        grad_k, grad_v = add_queries(
            *((grad_k, grad_v), k, v, pointers, WHOLE, factor),
            *(TOKENS, HEADS, LAST_QUERIES, True),
        )
    store_rows(grad_base + WIDTH, grad_k * scale, first, STRIDE, TOKENS, MASKED)
    store_rows(grad_base + 2 * WIDTH, grad_v, first, STRIDE, TOKENS, MASKED)


@triton.jit
def add_keys(
    grad_q,
    q,
    grad_out,
    log_sum,
    inner,
    base,
    first,
    factor,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    KEYS: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Adds the contribution of KEYS keys to the gradient of queries."""
    HEAD: tl.constexpr = q.shape[1]
    WIDTH: tl.constexpr = HEADS * HEAD
    k = load_rows(base + WIDTH, first, 3 * WIDTH, KEYS, HEAD, TOKENS, MASKED)
    v = load_rows(base + 2 * WIDTH, first, 3 * WIDTH, KEYS, HEAD, TOKENS, MASKED)
    logits = exact_dot(q, tl.trans(k))
    grad_weights = exact_dot(grad_out, tl.trans(v))
    weights = tl.exp2(logits * factor - log_sum[:, None])
    if MASKED:
        # Keys past the last are zero, but their weights may be infinite.
        mask = first + tl.arange(0, KEYS) < TOKENS
        weights = tl.where(mask[None, :], weights, 0.0)
    grad_logits = (weights * (grad_weights - inner[:, None])).to(k.dtype)
    return tl.dot(grad_logits, k, grad_q, input_precision="ieee")


@triton.jit
def gradients_of_queries(
    pointers,
    start,
    scale,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    LAST_KEYS: tl.constexpr,
    STAGES: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Gradient of QUERIES queries, in a loop over tiles of keys and values."""
    base, out_base, grad_out_base, log_sum_base, inner_base, grad_base = pointers
    WIDTH: tl.constexpr = HEADS * HEAD
    factor = scale * LOG2_E
    q = load_rows(base, start, 3 * WIDTH, QUERIES, HEAD, TOKENS, MASKED)
    out = load_rows(out_base, start, WIDTH, QUERIES, HEAD, TOKENS, MASKED)
    grad_out = load_rows(grad_out_base, start, WIDTH, QUERIES, HEAD, TOKENS, MASKED)
    log_sum = load_numbers(log_sum_base, start, QUERIES, TOKENS, MASKED)
    inner = tl.sum(out.to(tl.float32) * grad_out.to(tl.float32), 1)
    store_numbers(inner_base, inner, start, TOKENS, MASKED)
    grad_q = tl.zeros((QUERIES, HEAD), tl.float32)
    WHOLE: tl.constexpr = TOKENS // KEYS * KEYS
    for first in tl.range(0, WHOLE, KEYS, num_stages=STAGES):
        grad_q = add_keys(
            *(grad_q, q, grad_out, log_sum, inner, base, first, factor),
            *(TOKENS, HEADS, KEYS, False),
        )
    if WHOLE < TOKENS:
        grad_q = add_keys(
            *(grad_q, q, grad_out, log_sum, inner, base, WHOLE, factor),
            *(TOKENS, HEADS, LAST_KEYS, True),
        )
    store_rows(grad_base, grad_q * scale, start, 3 * WIDTH, TOKENS, MASKED)


@triton.jit
def query_gradients(
    qkv_ptr,
    out_ptr,
    log_sum_ptr,
    grad_out_ptr,
    inner_ptr,
    grad_qkv_ptr,
    scale,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    ROWS: tl.constexpr,
    LAST_ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    LAST_COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """One program: a tile of ROWS queries, in a loop over tiles of keys."""
    scale = tl.cast(scale, tl.float32)
    WHOLE: tl.constexpr = TOKENS // ROWS
    TILES: tl.constexpr = (TOKENS + ROWS - 1) // ROWS
    which = tl.program_id(0) // TILES
    part = tl.program_id(0) % TILES
    packed, unpacked, number = head_offsets(which, TOKENS, HEADS, HEAD)
    pointers = (
        qkv_ptr + packed,
        out_ptr + unpacked,
        grad_out_ptr + unpacked,
        log_sum_ptr + number,
        inner_ptr + number,
        grad_qkv_ptr + packed,
    )
    if part < WHOLE:
        gradients_of_queries(
            *(pointers, part * ROWS, scale, TOKENS, HEADS, HEAD, ROWS),
            *(COLUMNS, LAST_COLUMNS, STAGES, False),
        )
    elif WHOLE < TILES:
        gradients_of_queries(
            *(pointers, WHOLE * ROWS, scale, TOKENS, HEADS, HEAD, LAST_ROWS),
            *(COLUMNS, LAST_COLUMNS, STAGES, True),
        )


@triton.jit
def key_gradients(
    qkv_ptr,
    out_ptr,
    log_sum_ptr,
    grad_out_ptr,
    inner_ptr,
    grad_qkv_ptr,
    scale,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    ROWS: tl.constexpr,
    LAST_ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    LAST_COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """One program: a tile of ROWS keys, in a loop over tiles of queries."""
    scale = tl.cast(scale, tl.float32)
    WHOLE: tl.constexpr = TOKENS // ROWS
    TILES: tl.constexpr = (TOKENS + ROWS - 1) // ROWS
    which = tl.program_id(0) // TILES
    part = tl.program_id(0) % TILES
    packed, unpacked, number = head_offsets(which, TOKENS, HEADS, HEAD)
    pointers = (
        qkv_ptr + packed,
        out_ptr + unpacked,
        grad_out_ptr + unpacked,
        log_sum_ptr + number,
        inner_ptr + number,
        grad_qkv_ptr + packed,
    )
    if part < WHOLE:
        gradients_of_keys(
            *(pointers, part * ROWS, scale, TOKENS, HEADS, HEAD, ROWS),
            *(COLUMNS, LAST_COLUMNS, STAGES, False),
        )
    elif WHOLE < TILES:
        gradients_of_keys(
            *(pointers, WHOLE * ROWS, scale, TOKENS, HEADS, HEAD, LAST_ROWS),
            *(COLUMNS, LAST_COLUMNS, STAGES, True),
        )
