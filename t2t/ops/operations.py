"""Differentiable operations with Triton kernels.

In eager mode they are autograd functions, without the compiler, whose import takes
seconds. Under torch.compile, and for traced or fake tensors, they are the custom
operators of `operators.py`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from t2t.ops import (
    attention,
    embedding,
    first_attention,
    gelu,
    image_windows,
    ranks,
    residual_norm,
    token_transformer_triton,
)
from t2t.ops.kernels.launch import is_traced


class Operation(NamedTuple):
    """A forward and a backward pass by kernels, and how autograd connects them."""

    name: str
    forward: Callable[..., Any]
    backward: Callable[..., Any] | None = None
    save: Callable[..., None] | None = None
    gradients: Callable[..., Any] | None = None
    num_results: int = 1
    """Outputs with a gradient; the others are kept for the backward pass."""
    may_miss: tuple[int, ...] = ()
    """Outputs whose gradient `gradients` takes as None if they were not used."""

    def __call__(self, *inputs: Any) -> Any:
        """The outputs of the forward pass."""
        if is_traced():
            return operator(self.name)(*inputs)
        if self.gradients is None:
            return self.forward(*inputs)
        return FUNCTIONS[self.name].apply(*inputs)

    def run_backward(self, *inputs: Any) -> Any:
        """The backward pass, given what it needs."""
        if is_traced():
            return operator(f"{self.name}_backward")(*inputs)
        assert self.backward is not None
        return self.backward(*inputs)


def operator(name: str) -> Any:
    """The operator of an operation, registered at the first use."""
    import t2t.ops.operators  # noqa: F401 (imports the compiler)

    return getattr(torch.ops.t2t, name).default


def autograd_function(operation: Operation) -> Any:
    """An operation as an autograd function."""
    save, gradients = operation.save, operation.gradients
    assert save is not None
    assert gradients is not None

    def forward(ctx: Any, *inputs: Any) -> Any:
        """Marks outputs without a gradient, for which torch would fill in zeros."""
        outputs = operation.forward(*inputs)
        tensors = outputs if isinstance(outputs, tuple) else (outputs,)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*tensors[operation.num_results :])
        ctx.like = [
            (each.shape, each.dtype, each.device)
            for each in tensors[: operation.num_results]
        ]
        save(ctx, inputs, outputs)
        return outputs

    def backward(ctx: Any, *grads: Any) -> Any:
        """Passes zeros for results that were not used, unless None will do."""
        used = list(grads[: operation.num_results])
        for index, (shape, dtype, device) in enumerate(ctx.like):
            if used[index] is None and index not in operation.may_miss:
                used[index] = torch.zeros(shape, dtype=dtype, device=device)
        return gradients(ctx, *used, *grads[operation.num_results :])

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(operation.name, (torch.autograd.Function,), methods)


def save_attention(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    qkv, ctx.num_heads, ctx.scale = inputs
    ctx.save_for_backward(qkv, *output)


def attention_gradients(ctx, grad_out, grad_log_sum):  # type: ignore[no-untyped-def]
    qkv, out, log_sum = ctx.saved_tensors
    grad = packed_attention.run_backward(
        qkv, out, log_sum, grad_out, ctx.num_heads, ctx.scale
    )
    return grad, None, None


packed_attention = Operation(
    "packed_attention",
    attention.packed_forward,
    attention.packed_backward,
    save_attention,
    attention_gradients,
)


def save_first_attention(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    tokens, weight, bias, _, ctx.scale, _ = inputs
    out, log_sum, query, kv = output
    ctx.save_for_backward(tokens, weight, query, kv, out, log_sum)
    ctx.bias_dtype = None if bias is None else bias.dtype


def first_attention_gradients(ctx, grad_out, *_):  # type: ignore[no-untyped-def]
    has_bias = ctx.bias_dtype is not None
    tokens, weight, bias = fused_first_attention.run_backward(
        *ctx.saved_tensors, grad_out, ctx.scale, has_bias
    )
    bias = bias.to(ctx.bias_dtype) if has_bias else None
    return tokens, weight, bias, None, None, None


fused_first_attention = Operation(
    "first_attention",
    first_attention.fused_forward,
    first_attention.fused_backward,
    save_first_attention,
    first_attention_gradients,
)


def save_gelu(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    inner, bias = inputs
    ctx.save_for_backward(inner)
    ctx.dtype = bias.dtype


def gelu_gradients(ctx, grad):  # type: ignore[no-untyped-def]
    grad_inner, grad_bias = fused_gelu.run_backward(*ctx.saved_tensors, grad)
    return grad_inner, grad_bias.to(ctx.dtype)


fused_gelu = Operation(
    "gelu",
    gelu.fused_forward,
    gelu.fused_backward,
    save_gelu,
    gelu_gradients,
)


def save_residual_norm(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    _, branch, bias, gain, shift, branch_index, normed_index, _, scale, eps = inputs
    ctx.save_for_backward(output[0], gain, branch_index, normed_index)
    ctx.numbers = (branch.shape[0], scale, eps)
    ctx.dtypes = (gain.dtype, shift.dtype, bias.dtype)


def residual_norm_gradients(ctx, grad_total, grad_normed):  # type: ignore[no-untyped-def]
    total, gain, branch_index, normed_index = ctx.saved_tensors
    grad_residual, grad_branch, vectors = fused_residual_norm.run_backward(
        total, grad_total, grad_normed, gain, branch_index, normed_index, *ctx.numbers
    )
    if not len(grad_branch):
        grad_branch = grad_residual
    gain, shift, bias = (
        vector.to(dtype)
        for vector, dtype in zip(vectors.unbind(0), ctx.dtypes, strict=True)
    )
    return (grad_residual, grad_branch, bias, gain, shift, *(None,) * 5)


fused_residual_norm = Operation(
    "residual_norm",
    residual_norm.fused_forward,
    residual_norm.fused_backward,
    save_residual_norm,
    residual_norm_gradients,
    num_results=2,
    may_miss=(0,),
)


def save_norm(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    tokens, gain, shift, index, _, ctx.eps, _ = inputs
    ctx.save_for_backward(tokens, gain, index)
    ctx.dtypes = (gain.dtype, shift.dtype)


def norm_gradients(ctx, grad):  # type: ignore[no-untyped-def]
    tokens, gain, index = ctx.saved_tensors
    grad_tokens, vectors = fused_norm.run_backward(tokens, grad, gain, index, ctx.eps)
    gain, shift = (vectors[row].to(dtype) for row, dtype in enumerate(ctx.dtypes))
    return (grad_tokens, gain, shift, *(None,) * 4)


fused_norm = Operation(
    "norm",
    residual_norm.norm_forward,
    residual_norm.norm_backward,
    save_norm,
    norm_gradients,
)


def save_token_transformer(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    *tensors, ctx.drop_rate, ctx.eps = inputs
    out, _, hidden, log_mass, means = output
    ctx.save_for_backward(*tensors, out, hidden, log_mass, means)


def token_transformer_gradients(ctx, grad_out, grad_moments, *_):  # type: ignore[no-untyped-def]
    need_rstd = ctx.needs_input_grad[1]
    product, rstd, *sums = fused_token_transformer.run_backward(
        *ctx.saved_tensors, grad_out, grad_moments, ctx.drop_rate, ctx.eps, need_rstd
    )
    offset, *weights = token_transformer_triton.weight_gradients(*sums)
    return (
        *(product, rstd if need_rstd else None, None, None, offset, None),
        *(*weights, None, None, None),
    )


fused_token_transformer = Operation(
    "token_transformer",
    token_transformer_triton.fused_forward,
    token_transformer_triton.fused_backward,
    save_token_transformer,
    token_transformer_gradients,
    num_results=2,
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
    features, table, bias = fused_embedding.run_backward(
        grad, rank, ctx.shape[1], first, needs_bias, ctx.dtype
    )
    bias = bias.to(ctx.added[0]) if needs_bias else None
    prefix = table[None, :first].to(ctx.added[1]) if needs_prefix else None
    table = table.to(ctx.added[2]) if needs_table else None
    return features, bias, prefix, table, None, None, None


fused_embedding = Operation(
    "embedding",
    embedding.fused_forward,
    embedding.fused_backward,
    save_embedding,
    embedding_gradients,
)


fused_image_windows = Operation("image_windows", image_windows.fused_forward)
fused_gathered_windows = Operation("gathered_windows", image_windows.gather_forward)
fused_ranks = Operation("ranks", ranks.fused_forward)


OPERATIONS = (
    packed_attention,
    fused_first_attention,
    fused_gelu,
    fused_residual_norm,
    fused_norm,
    fused_token_transformer,
    fused_embedding,
    fused_image_windows,
    fused_gathered_windows,
    fused_ranks,
)
FUNCTIONS = {
    each.name: autograd_function(each)
    for each in OPERATIONS
    if each.gradients is not None
}
