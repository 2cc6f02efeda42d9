"""The convolution form of a soft split gives what unfold, LayerNorm and linear give."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t.errors import UserError
from t2t.ops.soft_split import (
    Split,
    smallest_side,
    soft_split,
    soft_split_reference,
    split_grids,
)
from t2t.ops.window_projection import project_windows

PUBLISHED = (Split(7, 4, 2), Split(3, 2, 1), Split(3, 2, 1))


def arguments(
    channels: int,
    split: Split,
    width: int,
    height: int,
    columns: int,
    bias: bool = True,
) -> tuple[
    torch.Tensor,
    Split,
    tuple[torch.Tensor, torch.Tensor, float],
    torch.Tensor,
    torch.Tensor | None,
]:
    window = channels * split.kernel**2
    norm = (1 + 0.3 * torch.randn(window), 0.3 * torch.randn(window), 1e-5)
    weight = torch.randn(width, window) * window**-0.5
    image = torch.randn(2, channels, height, columns)
    return image, split, norm, weight, torch.randn(width) if bias else None


@settings(max_examples=25, deadline=None)
@given(
    channels=st.integers(1, 5),
    kernel=st.integers(1, 7),
    stride=st.integers(1, 4),
    padding=st.integers(0, 3),
    height=st.integers(7, 20),
    width=st.integers(7, 20),
    normalised=st.booleans(),
    bias=st.booleans(),
)
def test_equals_the_reference(
    channels: int, kernel: int, stride: int, padding: int, height: int, width: int,
    normalised: bool, bias: bool,
) -> None:  # fmt: skip
    torch.manual_seed(channels + 10 * kernel)
    split = Split(kernel, stride, min(padding, kernel // 2))
    image, _, norm, weight, shift = arguments(channels, split, 6, height, width, bias)
    inputs = (image, split, norm if normalised else None, weight, shift)
    if channels * kernel**2 < 9:
        return  # a few pixels that are alike leave nothing but rounding to scale up
    torch.testing.assert_close(
        soft_split(*inputs), soft_split_reference(*inputs), rtol=1e-4, atol=2e-5
    )


def test_gradients_equal_the_references() -> None:
    torch.manual_seed(0)
    image, split, (gain, shift, eps), weight, bias = arguments(
        3, PUBLISHED[0], 8, 16, 20
    )
    assert bias is not None
    leaves = [image, gain, shift, weight, bias]
    gradients = []
    for function in (soft_split, soft_split_reference):
        fresh = [leaf.double().requires_grad_() for leaf in leaves]
        out = function(fresh[0], split, (fresh[1], fresh[2], eps), fresh[3], fresh[4])
        out.square().mean().backward()
        gradients.append([leaf.grad for leaf in fresh])
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("level", [0.0, 1.0, -2.5])
def test_flat_windows_stay_exact_in_bfloat16(level: float) -> None:
    """Rounded weights must not let the mean of a flat region leak into its tokens."""
    torch.manual_seed(0)
    image, split, norm, weight, bias = arguments(3, Split(7, 4, 0), 16, 32, 32)
    flat = torch.full_like(image, level).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        tokens = soft_split(flat, split, norm, weight, bias)
    expected = soft_split_reference(flat.float(), split, norm, weight, bias)
    torch.testing.assert_close(tokens.float(), expected, atol=0.03, rtol=0.01)


def test_flat_windows_of_any_level_are_finite() -> None:
    """Rounding must not make the variance negative."""
    _, split, norm, weight, _ = arguments(3, Split(7, 4, 2), 16, 32, 32)
    levels = torch.linspace(0, 255, 200)[:, None, None, None]
    flat = levels.expand(-1, 3, 16, 16)
    assert soft_split(flat, split, norm, weight, None).isfinite().all()
    windows = project_windows(flat, None, split, norm, weight, None, torch.float32)
    assert windows.rstd.isfinite().all()


@pytest.mark.parametrize("split", [Split(3, 1, 1), Split(7, 4, 2)])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_background_of_one_level_loses_no_digits(split: Split, channels: int) -> None:
    """Normalised white with a few pixels a level darker, as in a scan."""
    torch.manual_seed(0)
    image, _, norm, weight, bias = arguments(channels, split, 16, 40, 40)
    assert bias is not None
    darker = (torch.rand_like(image[:, :1]) < 0.05).float()
    white = (255 - darker).expand_as(image) / 255
    # Colours have other means and deviations, so their white differs a little.
    shift = torch.tensor([0.13, 0.14, 0.15])[:channels, None, None]
    image = (white - shift) / 0.31
    exact = [each.double() for each in (image, *norm[:2], weight, bias)]
    wanted = soft_split_reference(
        exact[0], split, (exact[1], exact[2], norm[2]), exact[3], exact[4]
    ).float()
    # Of such windows, the published order of operations gives as many digits.
    published = soft_split_reference(image, split, norm, weight, bias)
    error = (published - wanted).abs().max()
    assert error < 1e-3
    found = soft_split(image, split, norm, weight, bias)
    assert (found - wanted).abs().max() < max(5 * error, torch.tensor(1e-4))
    factors = project_windows(image, None, split, norm, weight, bias, torch.float32)
    projected = (
        factors.product - factors.centre * factors.mean[..., None]
    ) * factors.rstd[..., None] + factors.offset
    projected = projected.transpose(1, 2).unflatten(2, factors.grid)
    assert (projected - wanted).abs().max() < max(5 * error, torch.tensor(1e-4))


def test_windows_far_from_zero_stay_exact_in_bfloat16() -> None:
    torch.manual_seed(0)
    image, split, norm, weight, bias = arguments(3, Split(7, 4, 0), 16, 32, 32)
    image = (2.5 + 0.1 * image).bfloat16()
    product, rstd, mean, centre, offset, grid = project_windows(
        image, None, split, norm, weight, bias, torch.bfloat16
    )
    found = (product - centre * mean[..., None]) * rstd[..., None] + offset
    wanted = soft_split_reference(image.float(), split, norm, weight, bias)
    found = found.transpose(1, 2).unflatten(2, grid)
    assert (found - wanted).norm() < 0.005 * wanted.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_flat_windows_stay_exact_in_models_of_half_precision(
    dtype: torch.dtype,
) -> None:
    torch.manual_seed(0)
    image, split, (gain, shift, eps), weight, bias = arguments(
        3, Split(7, 4, 0), 16, 32, 32
    )
    assert bias is not None
    flat, gain, shift, weight, bias = (
        tensor.to(dtype)
        for tensor in (torch.full_like(image, 2.5), gain, shift, weight, bias)
    )
    inputs = (flat, split, (gain, shift, eps), weight, bias)
    torch.testing.assert_close(
        soft_split(*inputs), soft_split_reference(*inputs), atol=0.1, rtol=0.01
    )


@pytest.mark.parametrize("numbers", [(0, 1, 0), (3, 0, 1), (3, 1, -1), (3, 1, 2)])
def test_splits_without_windows_are_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(UserError, match="padding from 0 to half the kernel"):
        Split(*numbers)


def test_no_stage_may_be_left_without_tokens() -> None:
    """Padding alone would make a window of nothing."""
    with pytest.raises(UserError, match="at least 3×3"):
        split_grids((2, 2), [Split(3, 1, 0), Split(2, 1, 1)])


def test_published_grids() -> None:
    assert split_grids((224, 224), PUBLISHED) == [(56, 56), (28, 28), (14, 14)]
    assert split_grids((384, 224), PUBLISHED)[-1] == (24, 14)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 7), st.integers(1, 4)), min_size=1, max_size=4)
)
def test_smallest_side_is_the_smallest(numbers: list[tuple[int, int]]) -> None:
    splits = [Split(kernel, stride, kernel // 3) for kernel, stride in numbers]
    side = smallest_side(splits)
    assert min(split_grids((side, side), splits)[-1]) >= 1
    if side > 1:
        with pytest.raises(UserError, match=f"at least {side}×{side}"):
            split_grids((side - 1, side), splits)
