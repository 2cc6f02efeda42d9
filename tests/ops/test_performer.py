"""Performer attention: the published quotient, and finite where that breaks down."""

import io

import pytest
import torch

from t2t.ops.performer import (
    performer_attention,
    performer_published,
    performer_weights,
)


def arguments(
    size: float, dtype: torch.dtype = torch.float32, num_tokens: int = 50
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(int(size * 10))

    def sphere() -> torch.Tensor:
        x = torch.randn(2, num_tokens, 64, generator=generator)
        return (size * x / x.norm(dim=-1, keepdim=True)).to(dtype)

    features = torch.empty(32, 64)
    torch.nn.init.orthogonal_(features, generator=generator)
    value = torch.randn(2, num_tokens, 64, generator=generator).to(dtype)
    return [sphere(), sphere(), value, features * 32**0.5]


@pytest.mark.parametrize("size", [0.0, 0.5, 2.0, 3.0])
def test_equals_the_published_formula_where_that_is_sound(size: float) -> None:
    query, key, value, features = arguments(size)
    torch.testing.assert_close(
        performer_attention(query, key, value, features),
        performer_published(query, key, value, features),
        rtol=2e-5,
        atol=2e-6,
    )


@pytest.mark.parametrize("size", [0.0, 0.5, 2.0, 3.0])
def test_the_implied_map_is_the_normalised_product_of_the_features(size: float) -> None:
    query, key, value, features = (each.double() for each in arguments(size))

    def phi(x: torch.Tensor) -> torch.Tensor:
        exponent = x @ features.T - x.square().sum(-1, keepdim=True) / 2
        return exponent.exp() / len(features) ** 0.5

    product = phi(query) @ phi(key).transpose(1, 2)
    found = performer_weights(query, key, features)
    torch.testing.assert_close(found, product / product.sum(-1, keepdim=True))
    torch.testing.assert_close(
        found @ value, performer_attention(query, key, value, features)
    )


def test_gradients_equal_the_published_formulas() -> None:
    gradients = []
    for function in (performer_attention, performer_published):
        query, key, value, features = (each.double() for each in arguments(2.0))
        leaves = [x.requires_grad_() for x in (query, key, value)]
        function(*leaves, features).square().sum().backward()
        gradients.append([leaf.grad for leaf in leaves])
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=2e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1.0, 6.0, 15.0, 30.0])
def test_finite_and_a_weighted_mean_at_any_size(
    size: float, dtype: torch.dtype
) -> None:
    query, key, value, features = arguments(size, dtype)
    leaves = [x.requires_grad_() for x in (query, key, value)]
    mixed = performer_attention(*leaves, features)
    mixed.float().square().sum().backward()
    assert mixed.isfinite().all()
    assert all(leaf.grad is not None and leaf.grad.isfinite().all() for leaf in leaves)
    # A weighted mean lies within the values, and leaves a constant as it is.
    tolerance = 8 * torch.finfo(dtype).eps * value.abs().max()
    assert (mixed <= value.amax(1, keepdim=True) + tolerance).all()
    assert (mixed >= value.amin(1, keepdim=True) - tolerance).all()
    ones = performer_attention(query, key, torch.ones_like(value), features)
    torch.testing.assert_close(ones, torch.ones_like(ones), rtol=0.02, atol=0)


@pytest.mark.parametrize(
    ("dtype", "most"), [(torch.float32, 2e-6), (torch.bfloat16, 2**-7)]
)
@pytest.mark.parametrize("autocast", [False, True])
def test_exponents_are_computed_in_full_precision(
    dtype: torch.dtype, most: float, autocast: bool
) -> None:
    query, key, value, features = arguments(8.0, dtype)
    exact = performer_attention(*(x.double() for x in (query, key, value, features)))
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        mixed = performer_attention(query, key, value, features)
    # What is rounded is the weights and the result, not what is exponentiated.
    error = (mixed.double() - exact).norm() / exact.norm()
    assert mixed.dtype == dtype
    assert error < most


def test_the_exact_quotient_where_the_published_denominator_underflows() -> None:
    query, key, value, features = (x.double() for x in arguments(8.0))
    published = performer_published(*(x.float() for x in (query, key, value, features)))
    assert published.abs().max() < 1e-3  # collapsed to 0
    exponents = (
        query @ features.T,
        key @ features.T - key.square().sum(-1, keepdim=True) / 2,
    )
    kernel = torch.logsumexp(exponents[0][:, :, None] + exponents[1][:, None], dim=-1)
    expected = kernel.softmax(dim=-1) @ value
    actual = performer_attention(*(x.float() for x in (query, key, value, features)))
    torch.testing.assert_close(actual, expected.float(), rtol=1e-4, atol=1e-5)


def test_onnx_and_its_optimiser_keep_it() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")

    class Attention(torch.nn.Module):
        def forward(
            self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
        ) -> torch.Tensor:
            return performer_attention(query, key, value, features)

    *inputs, features = arguments(8.0, num_tokens=12)
    program = torch.onnx.export(
        Attention().eval(), tuple(inputs), dynamo=True, optimize=True, verbose=False
    )
    assert program is not None
    buffer = io.BytesIO()
    program.save(buffer)
    session = onnxruntime.InferenceSession(buffer.getvalue())
    feeds = {
        node.name: x.numpy()
        for node, x in zip(session.get_inputs(), inputs, strict=True)
    }
    (actual,) = session.run(None, feeds)
    expected = performer_attention(*inputs, features)
    torch.testing.assert_close(torch.from_numpy(actual), expected, rtol=1e-4, atol=1e-5)
