"""Attention of short sequences straight from and to the packed q, k, v of a linear.

All keys of a head are held at once. Forward they come in up to three pieces whose
widths are powers of two: 197 tokens as 128 + 64 + 16 compute a fifth less than as 256.
Backward, where their gradients are summed, narrow pieces cost more than they save.
"""

# mypy: ignore-errors
# Triton's functions are a language of their own, without Python's types.

import triton
import triton.language as tl


@triton.jit
def rows_of(pointer, first, stride, tokens, ROWS: tl.constexpr, HEAD: tl.constexpr):
    """ROWS tokens' share of one head, zero past the last token."""
    row = first + tl.arange(0, ROWS)
    at = row[:, None] * stride + tl.arange(0, HEAD)[None, :]
    return tl.load(pointer + at, mask=(row < tokens)[:, None], other=0.0)


@triton.jit
def logits_of(q, k, factor, first, tokens, KEYS: tl.constexpr):
    """Scaled logits in base 2, minus infinity past the last key."""
    real = first + tl.arange(0, KEYS) < tokens
    logits = tl.dot(q, tl.trans(k), input_precision="ieee") * factor
    return tl.where(real[None, :], logits, float("-inf"))


@triton.jit
def attention_forward(
    qkv_ptr,
    out_ptr,
    log_sum_ptr,
    tokens,
    num_heads,
    scale,
    HEAD: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    THIRD: tl.constexpr,
    QUERIES: tl.constexpr,
):
    """One program: one head of one sample."""
    factor = tl.cast(scale, tl.float32) * 1.4426950408889634
    which = tl.program_id(0)
    sample = (which // num_heads).to(tl.int64)
    head = which % num_heads
    width = num_heads * HEAD
    stride = 3 * width
    base = qkv_ptr + sample * tokens * stride + head * HEAD
    key_base = base + width
    value_base = base + 2 * width
    k = rows_of(key_base, 0, stride, tokens, FIRST, HEAD)
    v = rows_of(value_base, 0, stride, tokens, FIRST, HEAD)
    if SECOND > 0:
        k2 = rows_of(key_base, FIRST, stride, tokens, SECOND, HEAD)
        v2 = rows_of(value_base, FIRST, stride, tokens, SECOND, HEAD)
    if THIRD > 0:
        k3 = rows_of(key_base, FIRST + SECOND, stride, tokens, THIRD, HEAD)
        v3 = rows_of(value_base, FIRST + SECOND, stride, tokens, THIRD, HEAD)
    out_base = out_ptr + sample * tokens * width + head * HEAD
    for start in range(0, tokens, QUERIES):
        q = rows_of(base, start, stride, tokens, QUERIES, HEAD)
        logits = logits_of(q, k, factor, 0, tokens, FIRST)
        peak = tl.max(logits, 1)
        if SECOND > 0:
            logits2 = logits_of(q, k2, factor, FIRST, tokens, SECOND)
            peak = tl.maximum(peak, tl.max(logits2, 1))
        if THIRD > 0:
            logits3 = logits_of(q, k3, factor, FIRST + SECOND, tokens, THIRD)
            peak = tl.maximum(peak, tl.max(logits3, 1))
        weights = tl.exp2(logits - peak[:, None])
        total = tl.sum(weights, 1)
        mixed = tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        if SECOND > 0:
            weights = tl.exp2(logits2 - peak[:, None])
            total += tl.sum(weights, 1)
            mixed = tl.dot(weights.to(v.dtype), v2, mixed, input_precision="ieee")
        if THIRD > 0:
            weights = tl.exp2(logits3 - peak[:, None])
            total += tl.sum(weights, 1)
            mixed = tl.dot(weights.to(v.dtype), v3, mixed, input_precision="ieee")
        mixed = mixed / total[:, None]
        query = start + tl.arange(0, QUERIES)
        real = query < tokens
        at = query[:, None] * width + tl.arange(0, HEAD)[None, :]
        mixed = mixed.to(out_ptr.dtype.element_ty)
        tl.store(out_base + at, mixed, mask=real[:, None])
        tl.store(log_sum_ptr + which * tokens + query, peak + tl.log2(total), mask=real)


@triton.jit
def attention_backward(
    qkv_ptr,
    out_ptr,
    log_sum_ptr,
    grad_out_ptr,
    grad_qkv_ptr,
    tokens,
    num_heads,
    scale,
    HEAD: tl.constexpr,
    KEYS: tl.constexpr,
    QUERIES: tl.constexpr,
):
    """One program: one head of one sample, so that nothing is added atomically."""
    scale = tl.cast(scale, tl.float32)
    which = tl.program_id(0)
    sample = (which // num_heads).to(tl.int64)
    head = which % num_heads
    width = num_heads * HEAD
    stride = 3 * width
    offset = sample * tokens * stride + head * HEAD
    base = qkv_ptr + offset
    grad_base = grad_qkv_ptr + offset
    out_base = out_ptr + sample * tokens * width + head * HEAD
    grad_out_base = grad_out_ptr + sample * tokens * width + head * HEAD
    kind = grad_qkv_ptr.dtype.element_ty
    dims = tl.arange(0, HEAD)
    key = tl.arange(0, KEYS)
    k = rows_of(base + width, 0, stride, tokens, KEYS, HEAD)
    v = rows_of(base + 2 * width, 0, stride, tokens, KEYS, HEAD)
    grad_k = tl.zeros((KEYS, HEAD), tl.float32)
    grad_v = tl.zeros((KEYS, HEAD), tl.float32)
    for start in range(0, tokens, QUERIES):
        query = start + tl.arange(0, QUERIES)
        real = query < tokens
        q = rows_of(base, start, stride, tokens, QUERIES, HEAD)
        out = rows_of(out_base, start, width, tokens, QUERIES, HEAD)
        grad_out = rows_of(grad_out_base, start, width, tokens, QUERIES, HEAD)
        log_sum = tl.load(log_sum_ptr + which * tokens + query, mask=real, other=0.0)
        inner = tl.sum(out.to(tl.float32) * grad_out.to(tl.float32), 1)
        # Keys by queries, so that both sums over queries read the weights as they lie.
        logits = tl.dot(k, tl.trans(q), input_precision="ieee")
        logits = logits * (scale * 1.4426950408889634) - log_sum[None, :]
        logits = tl.where((key < tokens)[:, None], logits, float("-inf"))
        weights = tl.exp2(logits)
        grad_v = tl.dot(weights.to(v.dtype), grad_out, grad_v, input_precision="ieee")
        grad_weights = tl.dot(v, tl.trans(grad_out), input_precision="ieee")
        grad_logits = (weights * (grad_weights - inner[None, :])).to(k.dtype)
        grad_k = tl.dot(grad_logits, q, grad_k, input_precision="ieee")
        grad_q = tl.dot(tl.trans(k), grad_logits, input_precision="ieee") * scale
        at = query[None, :] * stride + dims[:, None]
        tl.store(grad_base + at, grad_q.to(kind), mask=real[None, :])
    at = key[:, None] * stride + dims[None, :]
    real = (key < tokens)[:, None]
    tl.store(grad_base + width + at, (grad_k * scale).to(kind), mask=real)
    tl.store(grad_base + 2 * width + at, grad_v.to(kind), mask=real)
