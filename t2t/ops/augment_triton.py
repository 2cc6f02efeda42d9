"""Augmentation on CUDA devices by Triton kernels.

The references are the functions of `t2t.data.augment`, which other devices use. A
program computes pixels of one sample by the operation that the sample drew, so an
operation costs only the samples that drew it.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from t2t.ops.availability import HAS_TRITON
from t2t.ops.kernels.launch import is_traced

# Pixels per program, of one plane: enough to keep many loads in flight.
TILE, FLOAT_TILE = 2048, 1024
# Pixels at a time for operations that need many registers, and for histograms.
BLOCK, COUNTED = 256, 4096

# No fused multiply-add: a product and a sum are rounded separately, as on a CPU and in
# PIL, since truncation shows the difference. Only plain launches have this option:
# hence custom operators, which the compiler treats as opaque, and not `triton_op`.
EXACT = {"enable_fp_fusion": False}


def has_kernel(images: Tensor) -> bool:
    """Whether these kernels support the images."""
    return HAS_TRITON and images.is_cuda


def operator(name: str) -> Callable[[Callable[..., Tensor]], Any]:
    """Makes a function a custom operator where it is traced, opaque to the compiler.

    Else it is called as it is: the first call of an operator imports the compiler.
    """

    def decorate(function: Callable[..., Tensor]) -> Any:
        custom = torch.library.custom_op(f"t2t::{name}", mutates_args=())(function)

        @wraps(function)
        def call(*inputs: Any) -> Any:
            return (custom if is_traced() else function)(*inputs)

        call.operator = custom  # type: ignore[attr-defined]
        return call

    return decorate


def fitting(num: int, images: Tensor) -> int:
    """This many pixels at a time, or fewer if a plane is smaller."""
    while num >= 2 * images.shape[2] * images.shape[3] and num > BLOCK:
        num //= 2
    return num


def layout(images: Tensor, tile: int) -> tuple[tuple[int], dict[str, int]]:
    """The grid of programs, and the sizes that kernels are compiled for.

    Dividing by a width that is not a constant would be slow.
    """
    batch, channels, height, width = images.shape
    tile = fitting(tile, images)
    sizes = {"HEIGHT": height, "WIDTH": width, "CHANNELS": channels, "TILE": tile}
    return (batch * channels * -(-height * width // tile),), sizes


@operator("crop_and_flip")
def crop_and_flip(
    images: Tensor, top: Tensor, left: Tensor, is_flipped: Tensor, reflects: bool
) -> Tensor:
    """The window at (top, left), which may reach outside, mirrored if flipped."""
    from t2t.ops.kernels.augment_pixels import crop_and_flip as kernel

    images = images.contiguous()
    out = torch.empty_like(images)
    grid, sizes = layout(images, TILE)
    starts = top.contiguous(), left.contiguous(), is_flipped.contiguous()
    with torch.cuda.device_of(images):
        kernel[grid](images, out, *starts, **sizes, REFLECT=reflects, num_warps=4)
    return out


@operator("apply_operations")
def apply_operations(
    images: Tensor, codes: Tensor, values: Tensor, matrix: Tensor, fill: Tensor
) -> Tensor:
    """Each sample after the operation of its code: its table, then its pixels.

    The matrix is for the affine ones, as is the fill, one level per channel.
    """
    from t2t.ops.kernels.augment_pixels import apply_operations as kernel
    from t2t.ops.kernels.augment_tables import make_tables

    images, codes, values = images.contiguous(), codes.contiguous(), values.contiguous()
    out = torch.empty_like(images)
    batch, channels, height, width = images.shape
    tables = images.new_empty((batch, channels, 256))
    grid, sizes = layout(images, TILE)
    with torch.cuda.device_of(images):
        make_tables[(batch * channels,)](
            images,
            tables,
            codes,
            values,
            height * width,
            CHANNELS=channels,
            BLOCK=fitting(COUNTED, images),
            num_warps=8,
            **EXACT,
        )
        kernel[grid](
            images,
            out,
            codes,
            values,
            matrix.contiguous(),
            tables,
            fill.contiguous(),
            **sizes,
            BLOCK=BLOCK,
            num_warps=4,
            **EXACT,
        )
    return out


@operator("mix_normalise_erase")
def mix_normalise_erase(
    images: Tensor,
    kept: Tensor | None,
    cut: Tensor | None,
    group: int,
    scale: Tensor,
    shift: Tensor,
    box: Tensor | None,
    keys: Tensor | None,
    word: int,
) -> Tensor:
    """Levels as floats: mixed if `kept`, scaled and shifted, erased in the `box`.

    A sample keeps a share of each pixel, none inside its cut. Its box is filled with
    normal noise drawn by its key and the stream's word, or with 0 without keys.
    """
    from t2t.ops.kernels.augment_floats import mix_normalise_erase as kernel

    images = images.contiguous()
    out = torch.empty_like(images, dtype=torch.float32)
    grid, sizes = layout(images, FLOAT_TILE)
    with torch.cuda.device_of(images):
        kernel[grid](
            images,
            out,
            images if kept is None else kept.contiguous(),
            images if cut is None else cut.contiguous(),
            scale.contiguous(),
            shift.contiguous(),
            images if box is None else box.contiguous(),
            images if keys is None else keys.contiguous(),
            word,
            group,
            # One mixture for all samples, or one for each.
            int(kept is not None and len(kept) == len(images)),
            **sizes,
            MIX=kept is not None,
            ERASE=box is not None,
            NOISE=keys is not None,
            num_warps=8,
            **EXACT,
        )
    return out


def like_pixels(images: Tensor, *others: Any) -> Tensor:
    """Pixels of the same shape."""
    return torch.empty_like(images, memory_format=torch.contiguous_format)


def like_floats(images: Tensor, *others: Any) -> Tensor:
    """Floats of the same shape."""
    return like_pixels(images).float()


crop_and_flip.operator.register_fake(like_pixels)
apply_operations.operator.register_fake(like_pixels)
mix_normalise_erase.operator.register_fake(like_floats)
