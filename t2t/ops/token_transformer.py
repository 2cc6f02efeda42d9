"""The Performer token transformer that follows a soft split, as one operation."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from t2t.ops.availability import HAS_TRITON
from t2t.ops.performer import performer_attention

Product = Float[Tensor, "batch tokens 192"]
PerToken = Float[Tensor, "batch tokens"]
Square = Float[Tensor, "64 64"]
Result = tuple[Float[Tensor, "batch tokens 64"], Float[Tensor, "batch tokens 2"]]


def dropout_masks(seed: Tensor, tokens: int, drop_rate: float) -> tuple[Tensor, Tensor]:
    """Two masks over tokens × 64, scaled to mean one: a hash of the seed and place."""
    index = torch.arange(tokens * 64, device=seed.device).view(tokens, 64)
    bits = (index + seed * 0x9E3779B9) & 0xFFFFFFFF
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        bits = ((bits ^ (bits >> shift)) * factor) & 0xFFFFFFFF
    below = round(drop_rate * 65536)
    scale = 65536 / (65536 - below)
    return ((bits & 0xFFFF) >= below) * scale, ((bits >> 16) >= below) * scale


def token_transformer_reference(
    product: Product,
    rstd: PerToken,
    mean: PerToken,
    centre: Float[Tensor, "192"],
    offset: Float[Tensor, "192"],
    features: Float[Tensor, "features 64"],
    proj: Square,
    fc1: Square,
    fc2: Square,
    biases: Float[Tensor, "3 64"],
    seed: Int64[Tensor, ""],
    drop_rate: float,
    eps: float,
) -> Result:
    """Token transformer of the projection (product − centre·mean)·rstd + offset.

    The projection holds key, query, value; `centre` and `mean` mend rounding and get no
    gradient. `biases` are those of proj, fc1 and fc2. LayerNorm's
    gain and shift are part of fc1 and its bias. The second result is, for every output token, the
    sum of its channels and of their squares: what the next split's LayerNorm needs.
    """
    dtype = product.dtype
    scaled = (product - centre * mean[..., None]) * rstd[..., None] + offset
    key, query, value = scaled.to(dtype).split(64, dim=-1)
    proj_bias, fc1_bias, fc2_bias = biases.to(dtype)
    first, second = torch.ones((), device=product.device), None
    if drop_rate:
        masks = dropout_masks(seed, key.shape[0] * key.shape[1], drop_rate)
        first, second = (mask.view(key.shape).to(dtype) for mask in masks)
    mixed = performer_attention(query, key, value, features)
    hidden = value + F.linear(mixed, proj.to(dtype), proj_bias) * first.to(dtype)
    normed = F.layer_norm(hidden, (64,), eps=eps)
    inner = F.gelu(F.linear(normed, fc1.to(dtype), fc1_bias))
    tail = F.linear(inner, fc2.to(dtype), fc2_bias)
    out = hidden + (tail if second is None else tail * second)
    wide = out if dtype == torch.float64 else out.float()
    return out, torch.stack([wide.sum(-1), wide.square().sum(-1)], dim=-1)


def token_transformer(
    product: Product,
    rstd: PerToken,
    mean: PerToken,
    centre: Float[Tensor, "192"],
    offset: Float[Tensor, "192"],
    features: Float[Tensor, "features 64"],
    proj: Square,
    fc1: Square,
    fc2: Square,
    biases: Float[Tensor, "3 64"],
    seed: Int64[Tensor, ""],
    drop_rate: float,
    eps: float,
) -> Result:
    """The same in two passes forward and three back, storing two tokens' worth."""
    tensors = (product, rstd, mean, centre, offset, features, proj, fc1, fc2)
    if has_kernel(product):
        out, moments, *_ = fused_token_transformer(
            *tensors, biases, seed, drop_rate, eps
        )
        return out, moments
    return token_transformer_reference(*tensors, biases, seed, drop_rate, eps)


def has_kernel(product: Product) -> bool:
    """Whether the fast path takes this product."""
    return (
        HAS_TRITON
        and product.is_cuda
        and product.dtype in (torch.bfloat16, torch.float16)
    )


def num_parts(batch: int, tokens: int, tile: int) -> int:
    """Into how many programs a sample is divided, to keep a large GPU busy."""
    return max(1, min(-(-tokens // tile), -(-1024 // batch)))


def dropout_numbers(drop_rate: float) -> tuple[int, float]:
    """The 16-bit draw below which a value is dropped, and what the kept are scaled by."""
    below = round(drop_rate * 65536)
    return below, 65536 / (65536 - below)


def fused_forward(
    product: Tensor,
    rstd: Tensor,
    mean: Tensor,
    centre: Tensor,
    offset: Tensor,
    features: Tensor,
    proj: Tensor,
    fc1: Tensor,
    fc2: Tensor,
    biases: Tensor,
    seed: Tensor,
    drop_rate: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Output, moments, and for the backward pass: hidden, features' log-mass, means."""
    from t2t.ops.kernels.launch import launch
    from t2t.ops.kernels.token_transformer import key_sums, token_forward

    product, rstd, mean, features, proj, fc1, fc2, biases = (
        tensor.contiguous()
        for tensor in (product, rstd, mean, features, proj, fc1, fc2, biases)
    )
    batch, tokens, _ = product.shape
    num_features = features.shape[0]
    tile = 64
    parts = num_parts(batch, tokens, tile)
    single = {"dtype": torch.float32, "device": product.device}
    peak = torch.empty(batch, parts, num_features, **single)
    mass = torch.empty(batch, parts, num_features, **single)
    value = torch.empty(batch, parts, num_features, 64, **single)
    inputs = (product, rstd, mean, centre, offset, features)
    launch(key_sums)[(batch, parts)](
        *inputs,
        peak,
        mass,
        value,
        tokens,
        FEATURES=num_features,
        TILE=tile,
        num_warps=4,
    )
    highest = peak.amax(1, keepdim=True)
    factor = torch.exp(peak - highest)
    total = (mass * factor).sum(1)
    log_mass = (highest.squeeze(1) + total.log()).contiguous()
    means = ((value * factor[..., None]).sum(1) / total[..., None]).contiguous()
    hidden = product.new_empty(batch, tokens, 64)
    out = product.new_empty(batch, tokens, 64)
    moments = torch.empty(batch, tokens, 2, **single)
    below, keep_scale = dropout_numbers(drop_rate)
    launch(token_forward)[(batch, parts)](
        *inputs,
        log_mass,
        means,
        proj,
        fc1,
        fc2,
        biases,
        seed,
        hidden,
        out,
        moments,
        tokens,
        below,
        keep_scale,
        EPS=eps,
        DROPOUT=below > 0,
        FEATURES=num_features,
        TILE=tile,
        num_warps=4,
        num_stages=2,
    )
    return out, moments, hidden, log_mass, means


def fused_backward(
    product: Tensor,
    rstd: Tensor,
    mean: Tensor,
    centre: Tensor,
    offset: Tensor,
    features: Tensor,
    proj: Tensor,
    fc1: Tensor,
    fc2: Tensor,
    biases: Tensor,
    seed: Tensor,
    out: Tensor,
    hidden: Tensor,
    log_mass: Tensor,
    means: Tensor,
    grad_out: Tensor,
    grad_moments: Tensor,
    drop_rate: float,
    eps: float,
    need_rstd: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of product, rstd (if asked), offset, proj, fc1, fc2 and the biases."""
    from t2t.ops.kernels.launch import launch
    from t2t.ops.kernels.token_transformer import (
        key_backward,
        mlp_backward,
        query_backward,
    )

    product, rstd, mean, features, proj, fc1, fc2, biases = (
        tensor.contiguous()
        for tensor in (product, rstd, mean, features, proj, fc1, fc2, biases)
    )
    grad_out, grad_moments = grad_out.contiguous(), grad_moments.contiguous()
    batch, tokens, _ = product.shape
    num_features = features.shape[0]
    tile = 64
    parts = num_parts(batch, tokens, tile)
    single = {"dtype": torch.float32, "device": product.device}
    below, keep_scale = dropout_numbers(drop_rate)
    dropout = {"DROPOUT": below > 0}
    grad_hidden = torch.empty_like(hidden)
    programs = min(264, -(-batch * tokens // tile))
    mlp_partial = torch.empty(programs, 8320, **single)
    launch(mlp_backward)[(programs,)](
        hidden,
        out,
        grad_out,
        grad_moments,
        fc1,
        fc2,
        biases,
        seed,
        grad_hidden,
        mlp_partial,
        batch * tokens,
        below,
        keep_scale,
        **dropout,
        EPS=eps,
        TILE=tile,
        num_warps=4,
        num_stages=2,
    )
    inputs = (product, rstd, mean, centre, offset, features, log_mass)
    grad_product = torch.empty_like(product)
    grad_scale = torch.empty(batch, tokens, **single)
    query_partial = torch.empty(batch * parts, 4224, **single)
    grad_means = torch.empty(batch, parts, num_features, 64, **single)
    grad_mass = torch.empty(batch, parts, num_features, **single)
    launch(query_backward)[(batch, parts)](
        *inputs,
        means,
        proj,
        seed,
        grad_hidden,
        grad_product,
        grad_scale,
        query_partial,
        grad_means,
        grad_mass,
        tokens,
        below,
        keep_scale,
        **dropout,
        NEED_RSTD=need_rstd,
        FEATURES=num_features,
        TILE=tile,
        num_warps=4,
    )
    grad_means = grad_means.sum(1).contiguous()
    grad_shift = (grad_mass.sum(1) - (means * grad_means).sum(-1)).contiguous()
    grad_rstd = torch.empty(batch, tokens, **single)
    key_partial = torch.empty(batch * parts, 128, **single)
    launch(key_backward)[(batch, parts)](
        *inputs,
        grad_means,
        grad_shift,
        grad_hidden,
        grad_product,
        grad_scale,
        grad_rstd,
        key_partial,
        tokens,
        NEED_RSTD=need_rstd,
        FEATURES=num_features,
        TILE=tile,
        num_warps=4,
    )
    mlp, query, key = mlp_partial.sum(0), query_partial.sum(0), key_partial.sum(0)
    grad_offset = torch.cat([key[:64], query[4160:], key[64:]])
    grad_biases = torch.cat([query[4096:4160], mlp[8192:]]).view(3, 64)
    grad_proj = query[:4096].view(64, 64).clone()
    grad_fc1 = mlp[:4096].view(64, 64).clone()
    grad_fc2 = mlp[4096:8192].view(64, 64).clone()
    return (
        grad_product,
        grad_rstd,
        grad_offset,
        grad_proj,
        grad_fc1,
        grad_fc2,
        grad_biases,
    )


fused_token_transformer = torch.library.triton_op(
    "t2t::token_transformer", fused_forward, mutates_args=()
)
fused_token_transformer_backward = torch.library.triton_op(
    "t2t::token_transformer_backward", fused_backward, mutates_args=()
)


def save_for_backward(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    *tensors, ctx.drop_rate, ctx.eps = inputs
    out, _, hidden, log_mass, means = output
    ctx.save_for_backward(*tensors, out, hidden, log_mass, means)


def backward(ctx, grad_out, grad_moments, *_):  # type: ignore[no-untyped-def]
    need_rstd = ctx.needs_input_grad[1]
    product, rstd, offset, proj, fc1, fc2, biases = fused_token_transformer_backward(
        *ctx.saved_tensors, grad_out, grad_moments, ctx.drop_rate, ctx.eps, need_rstd
    )
    return (
        *(product, rstd if need_rstd else None, None, None, offset, None),
        *(proj, fc1, fc2, biases, None, None, None),
    )


fused_token_transformer.register_autograd(backward, setup_context=save_for_backward)
