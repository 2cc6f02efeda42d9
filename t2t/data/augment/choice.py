"""One operation per sample, each sample its own, in a few passes over the batch.

On a device nothing is split by operation, since that would need shapes that depend on
the draws, and waiting for them. All operations on single levels become one table per
sample, all affine ones one matrix per sample. With Triton on CUDA, kernels do to each
sample what it has drawn; elsewhere each kind is computed once for all and chosen by
the sample's operation.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from t2t.data.augment import blur, colour, geometry, tables
from t2t.ops import augment_triton
from t2t.ops.augment_triton import CODES
from t2t.shapes import Pixels

Values = Float[Tensor, " batch"]

_TABLES: dict[str, Callable[[Values], tables.Table]] = {
    "brightness": tables.brightness_table,
    "posterize": tables.posterize_table,
    "solarize": tables.solarize_table,
    "solarize_add": tables.solarize_add_table,
}
_HISTOGRAM_TABLES: dict[str, Callable[[tables.Histogram], tables.Table]] = {
    "auto_contrast": tables.auto_contrast_table,
    "equalize": tables.equalize_table,
}
_TERMS: dict[str, Callable[[Values, int, int], geometry.Terms]] = {
    "rotate": geometry.rotate_terms,
    "shear_x": geometry.shear_x_terms,
    "shear_y": geometry.shear_y_terms,
    "translate_x": geometry.translate_x_terms,
    "translate_y": geometry.translate_y_terms,
}
_PIXELS: dict[str, Callable[[Pixels, Values], Pixels]] = {
    "saturation": colour.saturation,
    "sharpness": colour.sharpness,
    "hue": colour.hue,
    "grayscale": lambda images, value: colour.grayscale(images),
    "gaussian_blur": blur.gaussian_blur,
}

OPERATIONS = frozenset(
    {*_TABLES, *_HISTOGRAM_TABLES, *_TERMS, *_PIXELS, "contrast", "invert"}
)
# All that the kernels do: a blur is six passes and hue is rare.
KERNELS = OPERATIONS - {"gaussian_blur", "hue"}
# A grey image is one without saturation.
_PART = {"grayscale": "saturation"}
_COLOURED = {"contrast", "saturation", "grayscale"}


def _apply_tables(
    images: Pixels, chosen: dict[str, Bool[Tensor, " batch"]], values: Values
) -> Pixels:
    """The operations on single levels, merged into one table per sample."""
    made = {name: make(values) for name, make in _TABLES.items() if name in chosen}
    if "contrast" in chosen:
        made["contrast"] = tables.contrast_table(values, images)
    if "invert" in chosen:
        made["invert"] = tables.invert_table(images.device)
    wanted = [name for name in _HISTOGRAM_TABLES if name in chosen]
    if wanted:
        counts = tables.histogram(images)
        made |= {name: _HISTOGRAM_TABLES[name](counts) for name in wanted}
    if not made:
        return images
    table = tables.levels(images.device).to(torch.uint8)[None, None]
    for name, other in made.items():
        table = torch.where(chosen[name][:, None, None], other, table)
    return tables.lookup(images, table)


def _matrix(
    images: Pixels, chosen: dict[str, Bool[Tensor, " batch"]], values: Values
) -> geometry.Matrix:
    """The affine operations, merged into one matrix per sample."""
    height, width = images.shape[2:]
    choices = [
        (chosen[name], terms(values, height, width))
        for name, terms in _TERMS.items()
        if name in chosen
    ]
    return geometry.choose_matrix(choices, values)


def apply_together(
    images: Pixels,
    names: Sequence[str],
    choice: Int64[Tensor, " batch"],
    values: Values,
    fill: Sequence[int] = (),
    is_cubic: Bool[Tensor, " batch"] | None = None,
) -> Pixels:
    """`apply_chosen` for a device: each kind computed for all, the choice picks."""
    chosen = {name: choice == number for number, name in enumerate(names)}
    result = _apply_tables(images, chosen, values)
    for name, operation in _PIXELS.items():
        if name in chosen:
            mask = chosen[name][:, None, None, None]
            result = torch.where(mask, operation(images, values), result)
    affine = [mask for name, mask in chosen.items() if name in _TERMS]
    if affine:
        matrix = _matrix(images, chosen, values)
        moved = geometry.affine(images, matrix, fill, is_cubic)
        is_moved = torch.stack(affine).any(0)
        result = torch.where(is_moved[:, None, None, None], moved, result)
    return result


def apply_by_kernels(
    images: Pixels,
    names: Sequence[str],
    choice: Int64[Tensor, " batch"],
    values: Values,
    fill: Sequence[int] = (),
    is_cubic: Bool[Tensor, " batch"] | None = None,
) -> Pixels:
    """`apply_together` for the operations of `KERNELS`, each where it is chosen."""
    if _COLOURED.intersection(names):
        colour.check_channels(images)
    chosen = {name: choice == number for number, name in enumerate(names)}
    codes = torch.zeros_like(choice, dtype=torch.int32)
    moving = codes + CODES["affine_linear"]
    if is_cubic is not None:
        moving = torch.where(is_cubic, CODES["affine_cubic"], moving)
    for name, mask in chosen.items():
        code = moving if name in _TERMS else CODES[_PART.get(name, name)]
        codes = torch.where(mask, code, codes)
        if name == "grayscale":
            values = torch.where(mask, 0.0, values)
    matrix = _matrix(images, chosen, values)
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
    """Each sample through the operation that its choice numbers in `names`.

    A choice outside the names leaves the sample as it is. The value is the operation's
    own argument; the fill and the kind of interpolation are for the affine ones.
    """
    if augment_triton.has_kernel(images) and KERNELS.issuperset(names):
        return apply_by_kernels(images, names, choice, values, fill, is_cubic)
    if images.device.type != "cpu" or torch.compiler.is_compiling():
        return apply_together(images, names, choice, values, fill, is_cubic)
    # On a CPU looking at the draws costs nothing: only what is chosen is computed.
    result = images.clone()
    for number, name in enumerate(names):
        rows = (choice == number).nonzero()[:, 0]
        if len(rows):
            result[rows] = apply_together(
                images[rows],
                (name,),
                torch.zeros_like(rows),
                values[rows],
                fill,
                None if is_cubic is None else is_cubic[rows],
            )
    return result
