"""Attention of one or two queries to all keys, by products and sums."""

# mypy: ignore-errors
# Triton functions have no Python types.

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def first_attention_forward(
    query_ptr,
    kv_ptr,
    out_ptr,
    log_sum_ptr,
    tokens,
    scale,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    READ: tl.constexpr,
    KEYS: tl.constexpr,
    DIM: tl.constexpr,
    STAGES: tl.constexpr,
):
    """One program: one head of one sample."""
    scale = tl.cast(scale, tl.float32)
    sample = (tl.program_id(0) // HEADS).to(tl.int64)
    head = tl.program_id(0) % HEADS
    channel = tl.arange(0, DIM)
    channel_mask = channel < HEAD
    read = tl.arange(0, READ)
    first = (sample * READ + read)[:, None] * (HEADS * HEAD) + head * HEAD
    first += channel[None, :]
    query = tl.load(query_ptr + first, mask=channel_mask[None, :], other=0.0)
    query = query.to(tl.float32) * (scale * LOG2_E)
    kv_ptr += sample * tokens * (2 * HEADS * HEAD) + head * HEAD
    peak = tl.full((READ,), float("-inf"), tl.float32)
    mass = tl.zeros((READ,), tl.float32)
    total = tl.zeros((READ, DIM), tl.float32)
    for start in tl.range(0, tokens, KEYS, num_stages=STAGES):
        token = start + tl.arange(0, KEYS)
        mask = (token < tokens)[:, None] & channel_mask[None, :]
        at = kv_ptr + token[:, None] * (2 * HEADS * HEAD) + channel[None, :]
        key = tl.load(at, mask=mask, other=0.0).to(tl.float32)
        value = tl.load(at + HEADS * HEAD, mask=mask, other=0.0).to(tl.float32)
        logits = tl.sum(query[:, None, :] * key[None, :, :], 2)
        logits = tl.where((token < tokens)[None, :], logits, float("-inf"))
        higher = tl.maximum(peak, tl.max(logits, 1))
        factor = tl.exp2(peak - higher)
        weight = tl.exp2(logits - higher[:, None])
        mass = mass * factor + tl.sum(weight, 1)
        total *= factor[:, None]
        total += tl.sum(weight[:, :, None] * value[None, :, :], 1)
        peak = higher
    out = (total / mass[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + first, out, mask=channel_mask[None, :])
    at = log_sum_ptr + tl.program_id(0) * READ + read
    tl.store(at, peak + tl.log2(mass))


@triton.jit
def first_attention_backward(
    query_ptr,
    kv_ptr,
    out_ptr,
    log_sum_ptr,
    grad_out_ptr,
    grad_query_ptr,
    grad_kv_ptr,
    tokens,
    scale,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    READ: tl.constexpr,
    KEYS: tl.constexpr,
    DIM: tl.constexpr,
    STAGES: tl.constexpr,
):
    """One program: the gradients of one head of one sample."""
    scale = tl.cast(scale, tl.float32)
    sample = (tl.program_id(0) // HEADS).to(tl.int64)
    head = tl.program_id(0) % HEADS
    channel = tl.arange(0, DIM)
    channel_mask = (channel < HEAD)[None, :]
    read = tl.arange(0, READ)
    first = (sample * READ + read)[:, None] * (HEADS * HEAD) + head * HEAD
    first += channel[None, :]
    query = tl.load(query_ptr + first, mask=channel_mask, other=0.0).to(tl.float32)
    query *= scale
    grad = tl.load(grad_out_ptr + first, mask=channel_mask, other=0.0).to(tl.float32)
    out = tl.load(out_ptr + first, mask=channel_mask, other=0.0).to(tl.float32)
    inner = tl.sum(grad * out, 1)
    log_sum = tl.load(log_sum_ptr + tl.program_id(0) * READ + read)
    before = sample * tokens * (2 * HEADS * HEAD) + head * HEAD
    kv_ptr += before
    grad_kv_ptr += before
    DTYPE: tl.constexpr = grad_kv_ptr.dtype.element_ty
    grad_query = tl.zeros((READ, DIM), tl.float32)
    for start in tl.range(0, tokens, KEYS, num_stages=STAGES):
        token = start + tl.arange(0, KEYS)
        mask = (token < tokens)[:, None] & channel_mask
        at = token[:, None] * (2 * HEADS * HEAD) + channel[None, :]
        key = tl.load(kv_ptr + at, mask=mask, other=0.0).to(tl.float32)
        value = tl.load(kv_ptr + at + HEADS * HEAD, mask=mask, other=0.0)
        logits = tl.sum(query[:, None, :] * key[None, :, :], 2) * LOG2_E
        weight = tl.exp2(logits - log_sum[:, None])
        weight = tl.where((token < tokens)[None, :], weight, 0.0)
        grad_weight = tl.sum(grad[:, None, :] * value.to(tl.float32)[None, :, :], 2)
        grad_logits = weight * (grad_weight - inner[:, None])
        grad_value = tl.sum(weight[:, :, None] * grad[:, None, :], 0)
        tl.store(grad_kv_ptr + at + HEADS * HEAD, grad_value.to(DTYPE), mask=mask)
        grad_key = tl.sum(grad_logits[:, :, None] * query[:, None, :], 0)
        tl.store(grad_kv_ptr + at, grad_key.to(DTYPE), mask=mask)
        grad_query += tl.sum(grad_logits[:, :, None] * key[None, :, :], 1)
    grad_query = (grad_query * scale).to(DTYPE)
    tl.store(grad_query_ptr + first, grad_query, mask=channel_mask)
