"""Gradients of attention, all keys of a head held at once."""

# mypy: ignore-errors
# Triton's functions are a language of their own, without Python's types.

import triton
import triton.language as tl

from t2t.ops.kernels.attention_parts import (
    LOG2_E,
    head_offsets,
    numbers_of,
    product_of,
    rows_of,
    store_rows,
)


@triton.jit
def attention_backward_held(
    qkv_ptr,
    out_ptr,
    log_sum_ptr,
    grad_out_ptr,
    grad_qkv_ptr,
    scale,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    KEYS: tl.constexpr,
    QUERIES: tl.constexpr,
    STAGES: tl.constexpr,
):
    """One program: one head of one sample, so that nothing is added atomically."""
    scale = tl.cast(scale, tl.float32)
    which = tl.program_id(0)
    WIDTH: tl.constexpr = HEADS * HEAD
    STRIDE: tl.constexpr = 3 * WIDTH
    packed, alone, number = head_offsets(which, TOKENS, HEADS, HEAD)
    base = qkv_ptr + packed
    grad_base = grad_qkv_ptr + packed
    out_base = out_ptr + alone
    grad_out_base = grad_out_ptr + alone
    log_sum_base = log_sum_ptr + number
    kind = grad_qkv_ptr.dtype.element_ty
    dims = tl.arange(0, HEAD)
    PADDED: tl.constexpr = KEYS > TOKENS
    MASKED: tl.constexpr = TOKENS % QUERIES != 0
    k = rows_of(base + WIDTH, 0, STRIDE, KEYS, HEAD, TOKENS, PADDED)
    v = rows_of(base + 2 * WIDTH, 0, STRIDE, KEYS, HEAD, TOKENS, PADDED)
    grad_k = tl.zeros((KEYS, HEAD), tl.float32)
    grad_v = tl.zeros((KEYS, HEAD), tl.float32)
    for start in tl.range(0, TOKENS, QUERIES, num_stages=STAGES):
        q = rows_of(base, start, STRIDE, QUERIES, HEAD, TOKENS, MASKED)
        out = rows_of(out_base, start, WIDTH, QUERIES, HEAD, TOKENS, MASKED)
        grad_out = rows_of(grad_out_base, start, WIDTH, QUERIES, HEAD, TOKENS, MASKED)
        log_sum = numbers_of(log_sum_base, start, QUERIES, TOKENS, MASKED)
        inner = tl.sum(out.to(tl.float32) * grad_out.to(tl.float32), 1)
        # Keys by queries, so that both sums over queries read the weights as they lie.
        logits = product_of(k, tl.trans(q))
        logits = logits * (scale * LOG2_E) - log_sum[None, :]
        if PADDED:
            real = tl.arange(0, KEYS) < TOKENS
            logits = tl.where(real[:, None], logits, float("-inf"))
        weights = tl.exp2(logits)
        grad_v = tl.dot(weights.to(v.dtype), grad_out, grad_v, input_precision="ieee")
        grad_weights = product_of(v, tl.trans(grad_out))
        grad_logits = (weights * (grad_weights - inner[None, :])).to(k.dtype)
        grad_k = tl.dot(grad_logits, q, grad_k, input_precision="ieee")
        grad_q = product_of(tl.trans(k), grad_logits) * scale
        query = start + tl.arange(0, QUERIES)
        at = query[None, :] * STRIDE + dims[:, None]
        tl.store(grad_base + at, grad_q.to(kind), mask=(query < TOKENS)[None, :])
    store_rows(grad_base + WIDTH, grad_k * scale, 0, STRIDE, TOKENS, PADDED)
    store_rows(grad_base + 2 * WIDTH, grad_v, 0, STRIDE, TOKENS, PADDED)
