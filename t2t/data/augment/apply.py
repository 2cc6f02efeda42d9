"""Applies one randomly drawn operation to each image of a batch.

Shapes must not depend on the draws, so a device never splits a batch by operation. All
operations on single levels become one table per image, all affine ones one matrix per
image. With Triton on CUDA, one launch applies the operations that have a kernel, and
torch the others. Elsewhere torch computes each operation once for the batch and selects
the result by image.
"""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from t2t.data.augment import colour, geometry, tables
from t2t.data.augment.colour import Values
from t2t.data.augment.operations import OPERATIONS, checked_pixels
from t2t.ops import augment_triton
from t2t.ops.kernels.numbers import CODES
from t2t.shapes import Pixels

# Which images drew each operation.
Masks = Mapping[str, Bool[Tensor, " batch"]]
# Kernels that compute a luma, for which images need one or three channels.
_LUMA = {"contrast", "saturation"}


def _of_kind(masks: Masks, *kinds: str) -> Masks:
    return {n: mask for n, mask in masks.items() if OPERATIONS[n].kind in kinds}


def _apply_tables(images: Pixels, masks: Masks, values: Values) -> Pixels:
    """The operations on single levels, merged into one table per image."""
    by_value, by_counts = _of_kind(masks, "table"), _of_kind(masks, "histogram")
    if not by_value and not by_counts:
        return images
    table = tables.levels(images.device).to(torch.uint8)[None, None]
    for name, mask in by_value.items():
        other = OPERATIONS[name].function(values, images)
        table = torch.where(mask[:, None, None], other, table)
    if by_counts:
        counts = tables.histogram(images)
        for name, mask in by_counts.items():
            other = OPERATIONS[name].function(counts)
            table = torch.where(mask[:, None, None], other, table)
    return tables.lookup(images, table)


def _matrix(images: Pixels, masks: Masks, values: Values) -> geometry.Matrix:
    """The affine operations, merged into one matrix per image."""
    choices = [
        (mask, OPERATIONS[name].function(values, *images.shape[2:]))
        for name, mask in _of_kind(masks, "affine").items()
    ]
    return geometry.choose_matrix(choices, values)


def _apply_masks(
    images: Pixels,
    masks: Masks,
    values: Values,
    fill: Sequence[int],
    is_cubic: Bool[Tensor, " batch"] | None,
) -> Pixels:
    result = _apply_tables(images, masks, values)
    for name, mask in _of_kind(masks, "pixels").items():
        changed = OPERATIONS[name].function(images, torch.where(mask, values, 0.0))
        changed = checked_pixels(images, changed, name)
        result = torch.where(mask[:, None, None, None], changed, result)
    if moving := _of_kind(masks, "affine"):
        matrix = _matrix(images, masks, values)
        moved = geometry.affine(images, matrix, fill, is_cubic)
        is_moved = torch.stack([*moving.values()]).any(0)
        result = torch.where(is_moved[:, None, None, None], moved, result)
    return result


def apply_torch(
    images: Pixels,
    names: Sequence[str],
    choice: Int64[Tensor, " batch"],
    values: Values,
    fill: Sequence[int] = (),
    is_cubic: Bool[Tensor, " batch"] | None = None,
) -> Pixels:
    """`apply_chosen` by torch: every operation on all images, then a selection."""
    masks = {name: choice == number for number, name in enumerate(names)}
    return _apply_masks(images, masks, values, fill, is_cubic)


def apply_triton(
    images: Pixels,
    names: Sequence[str],
    choice: Int64[Tensor, " batch"],
    values: Values,
    fill: Sequence[int] = (),
    is_cubic: Bool[Tensor, " batch"] | None = None,
) -> Pixels:
    """`apply_chosen` by kernels; operations without a kernel by torch."""
    masks = {name: choice == number for number, name in enumerate(names)}
    by_torch = {name: masks[name] for name in names if not OPERATIONS[name].kernel}
    result = images
    if len(by_torch) < len(masks):
        by_kernel = {name: masks[name] for name in names if name not in by_torch}
        result = _apply_kernels(images, by_kernel, values, fill, is_cubic)
    if by_torch:
        others = _apply_masks(images, by_torch, values, fill, is_cubic)
        is_other = torch.stack([*by_torch.values()]).any(0)
        result = torch.where(is_other[:, None, None, None], others, result)
    return result


def _apply_kernels(
    images: Pixels,
    masks: Masks,
    values: Values,
    fill: Sequence[int],
    is_cubic: Bool[Tensor, " batch"] | None,
) -> Pixels:
    """All operations by one launch; an image in no mask stays as it is."""
    codes = torch.zeros_like(values, dtype=torch.int32)
    moving = codes + CODES["affine_linear"]
    if is_cubic is not None:
        moving = torch.where(is_cubic, CODES["affine_cubic"], moving)
    for name, mask in masks.items():
        operation = OPERATIONS[name]
        assert operation.kernel is not None
        if operation.kernel in _LUMA:
            colour.check_channels(images)
        code = moving if operation.kernel == "affine" else CODES[operation.kernel]
        codes = torch.where(mask, code, codes)
        if operation.kernel_value is not None:
            values = torch.where(mask, operation.kernel_value, values)
    matrix = _matrix(images, masks, values)
    colours = geometry.channel_values(fill or (0,) * images.shape[1], images)
    given = (codes, values, matrix, colours)
    result: Pixels = augment_triton.apply_operations(images, *given)
    return result


def apply_chosen(
    images: Pixels,
    names: Sequence[str],
    choice: Int64[Tensor, " batch"],
    values: Values,
    fill: Sequence[int] = (),
    is_cubic: Bool[Tensor, " batch"] | None = None,
) -> Pixels:
    """Applies operation `names[choice]` to each image.

    A choice outside the names leaves the image as it is. The value is the operation's
    argument; the fill and the kind of interpolation are for the affine ones.
    """
    if augment_triton.has_kernel(images):
        return apply_triton(images, names, choice, values, fill, is_cubic)
    if images.device.type != "cpu" or torch.compiler.is_compiling():
        return apply_torch(images, names, choice, values, fill, is_cubic)
    # On a CPU, reading the draws costs nothing: only what was drawn is computed.
    result = images.clone()
    for number, name in enumerate(names):
        rows = (choice == number).nonzero()[:, 0]
        if len(rows):
            result[rows] = apply_torch(
                images[rows],
                (name,),
                torch.zeros_like(rows),
                values[rows],
                fill,
                None if is_cubic is None else is_cubic[rows],
            )
    return result
