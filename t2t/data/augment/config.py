"""The settings of augmentation in a recipe: plain data, without PyTorch."""

import math
from dataclasses import dataclass, replace
from typing import Literal, Self, get_args

from t2t.errors import UserError, require, suggest

Padding = Literal["zero", "reflect"]
Interpolation = Literal["bilinear", "bicubic", "random"]
MixMode = Literal["batch", "sample"]
EraseFill = Literal["noise", "constant"]

# In timm's order; with "inc0" posterize and solarize weaken as the magnitude grows.
RAND_AUGMENT_OPERATIONS = (
    "auto_contrast",
    "equalize",
    "invert",
    "rotate",
    "posterize",
    "solarize",
    "solarize_add",
    "saturation",
    "contrast",
    "brightness",
    "sharpness",
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
)
MAX_SIGMA = 2.0
"""The largest standard deviation of a blur, in pixels."""
BY_VIEW = ("grayscale", "blur", "solarize")
"""Settings with a probability for each view of an image."""
_KEYS = {
    "m": "magnitude",
    "n": "number of operations",
    "p": "probability",
    "mstd": "standard deviation of the magnitude",
    "mmax": "largest magnitude",
    "inc": "1 for operations that strengthen with the magnitude",
}


@dataclass(frozen=True, kw_only=True)
class RandAugmentSettings:
    """The settings of RandAugment, as in timm's notation.

    The operations are drawn with replacement. Each is applied with the probability, at
    a magnitude that is normal around `magnitude` (uniform up to it if `magnitude_std`
    is above 100) and clipped to [0, `magnitude_max`].
    """

    magnitude: float = 10.0
    magnitude_std: float = 0.0
    magnitude_max: float = 10.0
    num_operations: int = 2
    probability: float = 0.5
    increasing: bool = False
    operations: tuple[str, ...] = RAND_AUGMENT_OPERATIONS

    @classmethod
    def parse(
        cls, text: str, operations: tuple[str, ...] = RAND_AUGMENT_OPERATIONS
    ) -> Self:
        """From timm's notation, as in `rand-m9-mstd0.5-inc1`."""
        hint = " Write it like rand-m9-mstd0.5-inc1."
        kind, *sections = text.split("-")
        if kind != "rand":
            raise UserError(f"RandAugment is written rand-…, not {text!r}.{hint}")
        given: dict[str, float] = {}
        for section in sections:
            key = section.rstrip("0123456789.")
            number = section[len(key) :]
            if not key.isalpha() or not number.replace(".", "", 1).isdigit():
                raise UserError(
                    f"{section!r} in {text!r} is not a letter key and a number.{hint}"
                )
            if key not in _KEYS:
                raise UserError(
                    f"{key!r} in {text!r} is not a setting of RandAugment."
                    f"{suggest(key, _KEYS)}"
                )
            if key in given:
                raise UserError(f"{key!r} is given twice in {text!r}.")
            if key in ("n", "inc") and not number.isdigit():
                raise UserError(f"{section!r} in {text!r} needs a whole number.")
            given[key] = float(number)
        if not 0 <= given.get("p", 0.5) <= 1:
            raise UserError(f"p in {text!r} is a probability: from 0 to 1.")
        if given.get("inc", 0) not in (0, 1):
            raise UserError(f"inc in {text!r} is either 0 or 1.")
        return cls(
            magnitude=given.get("m", 10.0),
            magnitude_std=given.get("mstd", 0.0),
            magnitude_max=given.get("mmax", 10.0) or 10.0,  # mmax0: no limit
            num_operations=int(given.get("n", 2)),
            probability=given.get("p", 0.5),
            increasing=bool(given.get("inc", 0)),
            operations=operations,
        )


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """The augmentation of training images after cropping; all off by default.

    In this order: padded crop, flip, RandAugment, three-augment, colour jitter,
    grayscale, blur, solarize, mixing, normalising, erasing. Erasing follows mixing as
    in the published recipe: a noise box covers both images of a mixture.

    `grayscale`, `blur` and `solarize` are probabilities: one for all views of an image,
    or one for each view. The last also holds for the views after it.
    """

    crop_padding: int = 0
    crop_fill: Padding = "zero"
    flip: float = 0.0
    rand_augment: str | None = None
    rand_augment_operations: tuple[str, ...] | None = None
    """The names that RandAugment draws from, also of `register_augmentation`. None:
    timm's fifteen."""
    interpolation: Interpolation = "random"
    three_augment: bool = False
    colour_jitter: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    jitter_probability: float = 1.0
    grayscale: tuple[float, ...] = (0.0,)
    blur: tuple[float, ...] = (0.0,)
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    """Smallest and largest standard deviation of the Gaussian, in pixels."""
    solarize: tuple[float, ...] = (0.0,)
    mixup: float = 0.0
    cutmix: float = 0.0
    cutmix_even: bool = False
    """Round the sides of cutmix boxes down to even numbers, as timm 0.3 did; later
    versions of timm do not."""
    mix_probability: float = 1.0
    mix_switch: float = 0.5
    mix_mode: MixMode = "batch"
    mix_group: int | None = None
    """Size of the groups of neighbouring images that are mixed with each other; with
    mix_mode=batch each group shares one draw. None: all images of a process."""
    smoothing: float = 0.0
    erase: float = 0.0
    erase_fill: EraseFill = "noise"
    erase_area: tuple[float, float] = (0.02, 1 / 3)
    erase_aspect: float = 0.3
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)

    def __post_init__(self) -> None:
        """Refuses invalid values before a run starts."""
        names = ("flip", "jitter_probability", "mix_probability", "mix_switch")
        for name in (*names, "smoothing", "erase"):
            require(name, getattr(self, name), 0.0, 1.0)
        self.check_views()
        for name in ("crop_padding", "mixup", "cutmix"):
            require(name, getattr(self, name), 0.0)
        for number, strength in enumerate(self.colour_jitter):
            limit = 0.5 if number == 3 else math.inf
            require(f"colour_jitter[{number}]", strength, 0.0, limit)
        require("erase_aspect", self.erase_aspect, 1e-6, 1.0)
        require("erase_area[0]", self.erase_area[0], 0.0, self.erase_area[1])
        require("erase_area[1]", self.erase_area[1], self.erase_area[0], 1.0)
        for name, allowed in (
            ("crop_fill", Padding),
            ("interpolation", Interpolation),
            ("mix_mode", MixMode),
            ("erase_fill", EraseFill),
        ):
            value, words = getattr(self, name), get_args(allowed)
            if value not in words:
                raise UserError(
                    f"{name} cannot be {value!r}.{suggest(str(value), words)}"
                )
        if len(self.mean) != len(self.std) or not all(each > 0 for each in self.std):
            raise UserError(
                f"mean {self.mean} and std {self.std} need one value per channel, "
                "with std above 0."
            )
        if self.mix_group is not None and self.mix_group < 2:
            raise UserError(f"mix_group is 2 or more, or None, not {self.mix_group}.")
        if self.rand_augment is not None:
            RandAugmentSettings.parse(self.rand_augment)

    def check_views(self) -> None:
        """Refuses invalid probabilities of single views, and invalid blurs."""
        for name in BY_VIEW:
            if not getattr(self, name):
                raise UserError(f"{name} is empty: give a probability from 0 to 1.")
            for number, probability in enumerate(getattr(self, name)):
                require(f"{name}[{number}]", probability, 0.0, 1.0)
        require("blur_sigma[0]", self.blur_sigma[0], 0.0, self.blur_sigma[1])
        require("blur_sigma[1]", self.blur_sigma[1], 0.0, MAX_SIGMA)

    def mix_group_for(self, num_images: int) -> int | None:
        """The group size for a process's images; None: all of them, with one draw.

        Raises an error if groups do not divide the images.
        """
        if self.mix_group is None or not (self.mixup or self.cutmix):
            return None
        group = min(self.mix_group, num_images)
        if num_images % group:
            raise UserError(
                f"{num_images} images per process cannot be mixed in groups of "
                f"{group}; set augmentation.mix_group to a divisor of {num_images}, or "
                "to none."
            )
        return group

    @property
    def fill(self) -> tuple[int, ...]:
        """The mean colour, which fills the borders of moved images."""
        return tuple(min(255, round(255 * each)) for each in self.mean)

    def light(self) -> "Augmentation":
        """The same with crops and flips only."""
        return replace(
            self,
            rand_augment=None,
            three_augment=False,
            colour_jitter=(0.0, 0.0, 0.0, 0.0),
            grayscale=(0.0,),
            blur=(0.0,),
            solarize=(0.0,),
            mixup=0.0,
            cutmix=0.0,
            erase=0.0,
        )
