"""One operation per sample, each sample its own, in a few passes over the batch.

On a device nothing is split by operation, since that would need shapes that depend on
the draws, and waiting for them. All operations on single levels become one table per
sample, all affine ones one matrix per sample; each kind is computed once and chosen by
the sample's operation.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from t2t.data.augment import blur, colour, geometry, tables
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


def _apply_affine(
    images: Pixels,
    chosen: dict[str, Bool[Tensor, " batch"]],
    values: Values,
    fill: Sequence[int],
    is_cubic: Bool[Tensor, " batch"] | None,
) -> tuple[Pixels, Bool[Tensor, " batch"]]:
    """The affine operations, merged into one matrix per sample; and who has any."""
    height, width = images.shape[2:]
    choices = [
        (chosen[name], terms(values, height, width))
        for name, terms in _TERMS.items()
        if name in chosen
    ]
    moved = torch.stack([mask for mask, _ in choices]).any(0)
    matrix = geometry.choose_matrix(choices, values)
    return geometry.affine(images, matrix, fill, is_cubic), moved


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
    if any(name in chosen for name in _TERMS):
        moved, is_moved = _apply_affine(images, chosen, values, fill, is_cubic)
        result = torch.where(is_moved[:, None, None, None], moved, result)
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
