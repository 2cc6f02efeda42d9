"""Operations with Triton kernels as operators that torch.compile traces through.

Registering them imports the compiler, which takes long: this file is imported only
where a kernel runs.
"""

import torch

from t2t.ops import (
    attention,
    embedding,
    first_attention,
    gelu,
    image_windows,
    residual_norm,
    token_transformer_triton,
)

packed_attention = torch.library.triton_op(
    "t2t::packed_attention", attention.packed_forward, mutates_args=()
)
packed_attention_backward = torch.library.triton_op(
    "t2t::packed_attention_backward", attention.packed_backward, mutates_args=()
)


def save_attention(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    qkv, ctx.num_heads, ctx.scale = inputs
    ctx.save_for_backward(qkv, *output)


def attention_gradients(ctx, grad_out, grad_log_sum):  # type: ignore[no-untyped-def]
    qkv, out, log_sum = ctx.saved_tensors
    grad = packed_attention_backward(
        qkv, out, log_sum, grad_out, ctx.num_heads, ctx.scale
    )
    return grad, None, None


torch.library.register_autograd(
    "t2t::packed_attention", attention_gradients, setup_context=save_attention
)


fused_first_attention = torch.library.triton_op(
    "t2t::first_attention", first_attention.fused_forward, mutates_args=()
)
fused_first_attention_backward = torch.library.triton_op(
    "t2t::first_attention_backward", first_attention.fused_backward, mutates_args=()
)


def save_first_attention(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    tokens, weight, bias, _, ctx.scale, _ = inputs
    out, log_sum, query, kv = output
    ctx.save_for_backward(tokens, weight, query, kv, out, log_sum)
    ctx.bias_dtype = None if bias is None else bias.dtype


def first_attention_gradients(ctx, grad_out, *_):  # type: ignore[no-untyped-def]
    has_bias = ctx.bias_dtype is not None
    tokens, weight, bias = fused_first_attention_backward(
        *ctx.saved_tensors, grad_out, ctx.scale, has_bias
    )
    bias = bias.to(ctx.bias_dtype) if has_bias else None
    return tokens, weight, bias, None, None, None


torch.library.register_autograd(
    "t2t::first_attention",
    first_attention_gradients,
    setup_context=save_first_attention,
)


fused_gelu = torch.library.triton_op("t2t::gelu", gelu.fused_forward, mutates_args=())
fused_gelu_backward = torch.library.triton_op(
    "t2t::gelu_backward", gelu.fused_backward, mutates_args=()
)


def save_gelu(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    inner, bias = inputs
    ctx.save_for_backward(inner)
    ctx.dtype = bias.dtype


def gelu_gradients(ctx, grad):  # type: ignore[no-untyped-def]
    grad_inner, grad_bias = fused_gelu_backward(*ctx.saved_tensors, grad)
    return grad_inner, grad_bias.to(ctx.dtype)


torch.library.register_autograd("t2t::gelu", gelu_gradients, setup_context=save_gelu)


fused_residual_norm = torch.library.triton_op(
    "t2t::residual_norm", residual_norm.fused_forward, mutates_args=()
)
fused_residual_norm_backward = torch.library.triton_op(
    "t2t::residual_norm_backward", residual_norm.fused_backward, mutates_args=()
)


def save_residual_norm(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    _, branch, bias, gain, shift, branch_index, normed_index, _, scale, eps = inputs
    ctx.save_for_backward(output[0], gain, branch_index, normed_index)
    ctx.numbers = (branch.shape[0], scale, eps)
    ctx.dtypes = (gain.dtype, shift.dtype, bias.dtype)


def residual_norm_gradients(ctx, grad_total, grad_normed):  # type: ignore[no-untyped-def]
    total, gain, branch_index, normed_index = ctx.saved_tensors
    grad_residual, grad_branch, vectors = fused_residual_norm_backward(
        total, grad_total, grad_normed, gain, branch_index, normed_index, *ctx.numbers
    )
    if not len(grad_branch):
        grad_branch = grad_residual
    gain, shift, bias = (
        vector.to(dtype)
        for vector, dtype in zip(vectors.unbind(0), ctx.dtypes, strict=True)
    )
    return (grad_residual, grad_branch, bias, gain, shift, *(None,) * 5)


torch.library.register_autograd(
    "t2t::residual_norm", residual_norm_gradients, setup_context=save_residual_norm
)


fused_norm = torch.library.triton_op(
    "t2t::norm", residual_norm.norm_forward, mutates_args=()
)
fused_norm_backward = torch.library.triton_op(
    "t2t::norm_backward", residual_norm.norm_backward, mutates_args=()
)


def save_norm(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    tokens, gain, shift, index, _, ctx.eps, _ = inputs
    ctx.save_for_backward(tokens, gain, index)
    ctx.dtypes = (gain.dtype, shift.dtype)


def norm_gradients(ctx, grad):  # type: ignore[no-untyped-def]
    tokens, gain, index = ctx.saved_tensors
    grad_tokens, vectors = fused_norm_backward(tokens, grad, gain, index, ctx.eps)
    gain, shift = (vectors[row].to(dtype) for row, dtype in enumerate(ctx.dtypes))
    return (grad_tokens, gain, shift, *(None,) * 4)


torch.library.register_autograd("t2t::norm", norm_gradients, setup_context=save_norm)


fused_token_transformer = torch.library.triton_op(
    "t2t::token_transformer", token_transformer_triton.fused_forward, mutates_args=()
)
fused_token_transformer_backward = torch.library.triton_op(
    "t2t::token_transformer_backward",
    token_transformer_triton.fused_backward,
    mutates_args=(),
)


def save_token_transformer(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    *tensors, ctx.drop_rate, ctx.eps = inputs
    out, _, hidden, log_mass, means = output
    ctx.save_for_backward(*tensors, out, hidden, log_mass, means)


def token_transformer_gradients(ctx, grad_out, grad_moments, *_):  # type: ignore[no-untyped-def]
    need_rstd = ctx.needs_input_grad[1]
    product, rstd, *sums = fused_token_transformer_backward(
        *ctx.saved_tensors, grad_out, grad_moments, ctx.drop_rate, ctx.eps, need_rstd
    )
    offset, *weights = token_transformer_triton.weight_gradients(*sums)
    return (
        *(product, rstd if need_rstd else None, None, None, offset, None),
        *(*weights, None, None, None),
    )


torch.library.register_autograd(
    "t2t::token_transformer",
    token_transformer_gradients,
    setup_context=save_token_transformer,
)


fused_image_windows = torch.library.triton_op(
    "t2t::image_windows", image_windows.fused_forward, mutates_args=()
)


fused_embedding = torch.library.triton_op(
    "t2t::embedding", embedding.fused_forward, mutates_args=()
)
fused_embedding_backward = torch.library.triton_op(
    "t2t::embedding_backward", embedding.fused_backward, mutates_args=()
)


def save_embedding(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    features, *added, rank, _, _ = inputs
    ctx.save_for_backward(rank)
    ctx.shape, ctx.dtype = features.shape, features.dtype
    ctx.added = [None if each is None else each.dtype for each in added]
    ctx.num_prefix = 0 if added[1] is None else added[1].shape[1]


def embedding_gradients(ctx, grad):  # type: ignore[no-untyped-def]
    (rank,) = ctx.saved_tensors
    first = ctx.num_prefix
    _, needs_bias, needs_prefix, needs_table, *_ = ctx.needs_input_grad
    features, table, bias = fused_embedding_backward(
        grad, rank, ctx.shape[1], first, needs_bias, ctx.dtype
    )
    bias = bias.to(ctx.added[0]) if needs_bias else None
    prefix = table[None, :first].to(ctx.added[1]) if needs_prefix else None
    table = table.to(ctx.added[2]) if needs_table else None
    return features, bias, prefix, table, None, None, None


torch.library.register_autograd(
    "t2t::embedding", embedding_gradients, setup_context=save_embedding
)
