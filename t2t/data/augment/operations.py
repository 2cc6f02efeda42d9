"""The registry of augmentation operations: torch function, kernel, value.

A new operation is one entry here. From outside the package, `register_augmentation`
adds one, which `Augmentation.rand_augment_operations` can then name.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from t2t.data.augment import blur, colour, geometry, tables
from t2t.data.augment.colour import Values
from t2t.data.augment.config import MAX_SIGMA
from t2t.errors import UserError
from t2t.registry import Registry, check_takes
from t2t.shapes import Pixels


class Magnitude(NamedTuple):
    """How strongly RandAugment applies an operation to each image."""

    level: Float[Tensor, "*shape"]
    """From 0 to 1, a tenth of timm's magnitude."""
    signed: Float[Tensor, "*shape"]
    """The level, with a random sign."""
    increasing: bool
    """Whether a higher level is always a stronger change (inc1)."""


Function = TypeVar("Function", bound=Callable[[Pixels, Values], Pixels])
MagnitudeRule = Callable[[Magnitude], Float[Tensor, "*shape"]]
"""From the magnitude to the value that the operation's function takes."""


@dataclass(frozen=True)
class Operation:
    """One way to change an image, by its kind and functions."""

    kind: Literal["pixels", "table", "histogram", "affine"]
    """What `function` maps: (images, values) to images; (values, images) to tables of
    levels; histograms to tables of levels; (values, height, width) to affine terms."""
    function: Callable[..., Any]
    magnitude: MagnitudeRule | None = None
    """None for an operation that takes no value."""
    kernel: str | None = None
    """The Triton code that does the same, a key of `t2t.ops.kernels.numbers.CODES`, or
    "affine"; without one, the function also serves CUDA."""
    kernel_value: float | None = None
    """The value that the kernel needs in place of the operation's."""


def by_level(magnitude: Magnitude) -> Tensor:
    """The level itself, from 0 to 1."""
    return magnitude.level


def by_sign(scale: float) -> MagnitudeRule:
    """The level with a random sign, times a scale."""
    return lambda magnitude: magnitude.signed * scale


def enhancement(magnitude: Magnitude) -> Tensor:
    """A factor about 1, as timm draws it for PIL's enhancers."""
    if magnitude.increasing:
        return (1.0 + magnitude.signed * 0.9).clamp(min=0.1)
    return magnitude.level * 1.8 + 0.1


def posterize_bits(magnitude: Magnitude) -> Tensor:
    """How many bits are kept, up to four."""
    bits = (magnitude.level * 4).floor()
    return 4 - bits if magnitude.increasing else bits


def solarize_threshold(magnitude: Magnitude) -> Tensor:
    """The level from which solarizing inverts."""
    threshold = (magnitude.level * 256).floor().clamp(max=256)
    return 256 - threshold if magnitude.increasing else threshold


def solarize_amount(magnitude: Magnitude) -> Tensor:
    """The number that solarize_add adds."""
    return (magnitude.level * 110).floor().clamp(max=128)


def _grayscale(images: Pixels, values: Values) -> Pixels:
    return colour.grayscale(images)


_SHEAR, _SHIFT = by_sign(0.3), by_sign(0.45)
OPERATIONS: Registry[Operation] = Registry(
    "augmentation",
    {
        "brightness": Operation(
            "table", tables.brightness_table, enhancement, "brightness"
        ),
        "contrast": Operation("table", tables.contrast_table, enhancement, "contrast"),
        "posterize": Operation(
            "table", tables.posterize_table, posterize_bits, "posterize"
        ),
        "solarize": Operation(
            "table", tables.solarize_table, solarize_threshold, "solarize"
        ),
        "solarize_add": Operation(
            "table", tables.solarize_add_table, solarize_amount, "solarize_add"
        ),
        "invert": Operation("table", tables.invert_table, None, "invert"),
        "auto_contrast": Operation(
            "histogram", tables.auto_contrast_table, None, "auto_contrast"
        ),
        "equalize": Operation("histogram", tables.equalize_table, None, "equalize"),
        "rotate": Operation("affine", geometry.rotate_terms, by_sign(30.0), "affine"),
        "shear_x": Operation("affine", geometry.shear_x_terms, _SHEAR, "affine"),
        "shear_y": Operation("affine", geometry.shear_y_terms, _SHEAR, "affine"),
        "translate_x": Operation(
            "affine", geometry.translate_x_terms, _SHIFT, "affine"
        ),
        "translate_y": Operation(
            "affine", geometry.translate_y_terms, _SHIFT, "affine"
        ),
        "saturation": Operation("pixels", colour.saturation, enhancement, "saturation"),
        "sharpness": Operation("pixels", colour.sharpness, enhancement, "sharpness"),
        "grayscale": Operation("pixels", _grayscale, None, "saturation", 0.0),
        # No kernels: a blur is six passes, and hue is rare.
        "hue": Operation("pixels", colour.hue, by_sign(0.5)),
        "gaussian_blur": Operation(
            "pixels", blur.gaussian_blur, lambda given: given.level * MAX_SIGMA
        ),
    },
)


def register_augmentation(
    name: str, *, magnitude: MagnitudeRule | None = by_level
) -> Callable[[Function], Function]:
    """A decorator that adds an operation that RandAugment can draw by name.

    The function takes uint8 images, batch × channels × height × width, and one float
    per image; it returns new images of the same shape and type. An image's result may
    depend on that image and its value only: the function draws no random numbers. On a
    GPU it is called for the whole batch, with value 0 for the images that drew another
    operation, whose results are dropped.

    `magnitude` turns the strength that RandAugment draws into the function's value; by
    default the value is the level, from 0 to 1. With None, the value is 0.
    """

    OPERATIONS.check_name(name)
    if magnitude is not None and not callable(magnitude):
        raise UserError(
            f"magnitude={magnitude!r} of {name!r} should be a function from the "
            "strength to the value, or None."
        )

    if magnitude is not None:
        check_takes(f"The magnitude of {name!r}", magnitude, "given")

    def add(function: Function) -> Function:
        check_takes(f"augmentation {name!r}", function, "images", "values")
        OPERATIONS.add(name, Operation("pixels", function, magnitude), function)
        return function

    return add


def check_operations(names: tuple[str, ...]) -> None:
    """Refuses operations that do not exist or are named twice."""
    if not names:
        raise UserError("rand_augment_operations is empty: name one or more, or none.")
    for name in names:
        OPERATIONS.choose(name)
        if names.count(name) > 1:
            raise UserError(f"rand_augment_operations names {name!r} twice.")


def checked_values(values: Any, strengths: Tensor, name: str) -> Tensor:
    """What a magnitude rule returns, or an error if it is not a number per image."""
    if not isinstance(values, Tensor) or values.shape != strengths.shape:
        found = tuple(values.shape) if isinstance(values, Tensor) else repr(values)
        raise UserError(
            f"The magnitude of augmentation operation {name!r} returned {found}: it "
            f"should return a tensor of shape {tuple(strengths.shape)}."
        )
    return values


def checked_pixels(images: Pixels, result: Any, name: str) -> Pixels:
    """The result of an operation, or an error if it has another shape or type."""
    if not isinstance(result, Tensor):
        raise UserError(
            f"Augmentation operation {name!r} returned a {type(result).__name__}: it "
            f"should return torch.uint8 of shape {tuple(images.shape)}."
        )
    if result.dtype != torch.uint8 or result.shape != images.shape:
        raise UserError(
            f"Augmentation operation {name!r} returned {result.dtype} of shape "
            f"{tuple(result.shape)}: it should return torch.uint8 of shape "
            f"{tuple(images.shape)}."
        )
    return result
