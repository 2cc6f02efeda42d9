"""Draws the operations of each image: RandAugment, three-augment, colour jitter."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from t2t.data.augment.apply import apply_chosen
from t2t.data.augment.config import (
    MAX_SIGMA,
    Augmentation,
    Interpolation,
    RandAugmentSettings,
)
from t2t.data.augment.operations import (
    OPERATIONS,
    Magnitude,
    MagnitudeRule,
    check_operations,
    checked_values,
)
from t2t.data.rng import CounterRng
from t2t.shapes import Pixels

THREE_AUGMENT_OPERATIONS = ("grayscale", "solarize", "gaussian_blur")
JITTER_OPERATIONS = ("brightness", "contrast", "saturation", "hue")


class Layer(NamedTuple):
    """The operation of each sample; a choice of −1 is none."""

    choice: Int64[Tensor, " batch"]
    value: Float[Tensor, " batch"]
    is_cubic: Bool[Tensor, " batch"]


class RandAugment(RandAugmentSettings):
    """A few random operations of random strength per sample, as in timm."""

    @classmethod
    def of(cls, config: Augmentation) -> "RandAugment | None":
        """RandAugment as the config asks for it, if it does."""
        if config.rand_augment is None:
            return None
        if config.rand_augment_operations is None:
            return cls.parse(config.rand_augment)
        check_operations(config.rand_augment_operations)
        return cls.parse(config.rand_augment, config.rand_augment_operations)

    def values(
        self,
        choice: Int64[Tensor, "*shape"],
        magnitude: Float[Tensor, "*shape"],
        is_negative: Bool[Tensor, "*shape"],
    ) -> Float[Tensor, "*shape"]:
        """The argument of each sample's operation at this magnitude."""
        level = magnitude / 10.0
        signed = torch.where(is_negative, -level, level)
        given = Magnitude(level, signed, self.increasing)
        by_rule: dict[MagnitudeRule, Tensor] = {}
        value = torch.zeros_like(magnitude)
        for number, name in enumerate(self.operations):
            rule = OPERATIONS[name].magnitude
            if rule is None:
                continue
            if rule not in by_rule:
                by_rule[rule] = checked_values(rule(given), magnitude, name)
            value = torch.where(choice == number, by_rule[rule], value)
        return value

    def draw(
        self, rng: CounterRng, interpolation: Interpolation = "random"
    ) -> list[Layer]:
        """The layers of this batch, to be applied in order."""
        num = self.num_operations
        which, apply, sign, kind = rng.uniform("rand_augment", 4 * num).chunk(4, 1)
        choice = (which * len(self.operations)).long()
        choice = torch.where(apply < self.probability, choice, -1)
        if self.magnitude_std > 100:
            magnitude = self.magnitude * rng.uniform("rand_augment.magnitude", num)
        else:
            noise = rng.normal("rand_augment.magnitude", num)
            magnitude = self.magnitude + self.magnitude_std * noise
        magnitude = magnitude.clamp(0.0, self.magnitude_max)
        share = {"bilinear": 0.0, "bicubic": 1.0, "random": 0.5}[interpolation]
        values = self.values(choice, magnitude, sign < 0.5)
        # Transposed: each layer's numbers are contiguous for a kernel.
        drawn = (choice, values, kind < share)
        layers = (each.T.contiguous().unbind(0) for each in drawn)
        return [Layer(*layer) for layer in zip(*layers, strict=True)]

    def __call__(
        self,
        images: Pixels,
        rng: CounterRng,
        fill: tuple[int, ...],
        interpolation: Interpolation = "random",
    ) -> Pixels:
        """The images after all layers; `fill` is the colour at moved borders."""
        for layer in self.draw(rng, interpolation):
            images = apply_chosen(
                images,
                self.operations,
                layer.choice,
                layer.value,
                fill,
                None if interpolation == "bilinear" else layer.is_cubic,
            )
        return images


def three_augment(images: Pixels, rng: CounterRng) -> Pixels:
    """DeiT III's 3-Augment: each sample turned grey, solarized at 128, or blurred.

    Colour jitter, its fourth part, is `colour_jitter` afterwards.
    """
    choice = rng.integers("three_augment.operation", 3)[:, 0]
    sigma = rng.uniform("three_augment.sigma", low=0.1, high=MAX_SIGMA)[:, 0]
    value = torch.where(choice == 1, 128.0, sigma)
    return apply_chosen(images, THREE_AUGMENT_OPERATIONS, choice, value)


def colour_jitter(
    images: Pixels,
    rng: CounterRng,
    strength: tuple[float, float, float, float],
    probability: float = 1.0,
) -> Pixels:
    """Brightness, contrast, saturation and hue, by random factors in a random order.

    A strength s draws a factor in [max(0, 1 − s), 1 + s], for hue a turn in [−s, s];
    operations of strength 0 are skipped. An image gets all of them, with the
    probability, or none.
    """
    active = [
        (name, amount)
        for name, amount in zip(JITTER_OPERATIONS, strength, strict=True)
        if amount > 0
    ]
    if not active:
        return images
    names = [name for name, _ in active]
    unit = rng.uniform("colour_jitter.factor", len(JITTER_OPERATIONS))
    order = rng.permutation("colour_jitter.order", len(active))
    if probability < 1:
        is_changed = rng.bernoulli("colour_jitter.apply", probability)
        order = torch.where(is_changed, order, -1)
    for position in range(len(active)):
        choice = order[:, position]
        value = torch.zeros_like(unit[:, 0])
        for number, (name, amount) in enumerate(active):
            low = -amount if name == "hue" else max(0.0, 1.0 - amount)
            high = amount if name == "hue" else 1.0 + amount
            drawn = low + (high - low) * unit[:, JITTER_OPERATIONS.index(name)]
            value = torch.where(choice == number, drawn, value)
        images = apply_chosen(images, names, choice, value)
    return images


def grayscale_blur_solarize(
    images: Pixels, rng: CounterRng, config: Augmentation, view: int = 0
) -> Pixels:
    """Each image turned grey, blurred and solarized at 128, by independent draws."""
    low, high = config.blur_sigma
    for name, probabilities in (
        ("grayscale", config.grayscale),
        ("gaussian_blur", config.blur),
        ("solarize", config.solarize),
    ):
        probability = probabilities[min(view, len(probabilities) - 1)]
        if probability == 0:
            continue
        value = torch.full_like(rng.keys, 128, dtype=torch.float32)
        if name == "gaussian_blur":
            value = rng.uniform("blur.sigma", low=low, high=high)[:, 0]
        is_changed = rng.bernoulli(f"{name}.apply", probability)[:, 0]
        choice = torch.where(is_changed, 0, -1)
        images = apply_chosen(images, (name,), choice, value)
    return images
