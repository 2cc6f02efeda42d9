"""Runs every kernel of augmentation and prints how it differs from plain code as JSON.

    TRITON_INTERPRET=1 python tests/ops/augment_differences.py cpu
    python tests/ops/augment_differences.py cuda

The first is what test_augment_triton.py starts, in a process of its own: Triton reads
the variable once, at import. The second runs the real thing against the CPU.
"""

import dataclasses
import json
import sys
from unittest import mock

import torch
from torch import Tensor

from t2t.data.augment.apply import apply_torch, apply_triton
from t2t.data.augment.config import RAND_AUGMENT_OPERATIONS, Augmentation
from t2t.data.augment.geometry import crop_and_flip
from t2t.data.augment.operations import OPERATIONS, register_augmentation
from t2t.data.augment.pipeline import augment
from t2t.data.rng import CounterRng
from t2t.ops import augment_triton, draw_bits
from t2t.recipes.imagenet import AUGMENTATION

DEVICE = sys.argv[1]
FILL = (124, 116, 104)
MOVING = {"rotate", "shear_x", "shear_y", "translate_x", "translate_y"}
VALUES = {
    "posterize": [0.0, 1.0, 3.0, 8.0],
    "solarize": [0.0, 20.0, 127.0, 256.0],
    "solarize_add": [0.0, 30.0, 99.0, 128.0],
    "rotate": [-29.0, 7.0, 30.0, 0.0],
}
PUBLISHED = dataclasses.replace(AUGMENTATION, erase=0.5)
SETTINGS = {
    "published": PUBLISHED,
    "by sample": dataclasses.replace(PUBLISHED, mix_mode="sample", mix_group=2),
    "unmixed": dataclasses.replace(PUBLISHED, mixup=0.0, cutmix=0.0),
    "constant": dataclasses.replace(PUBLISHED, crop_padding=3, erase_fill="constant"),
    "jitter": Augmentation(colour_jitter=(0.3, 0.3, 0.3, 0.0), mixup=0.5),
    "rare": Augmentation(three_augment=True, colour_jitter=(0.0, 0.0, 0.3, 0.1)),
    "nothing": Augmentation(),
}


def pictures(num: int, channels: int, height: int, width: int) -> Tensor:
    """Smooth and noisy at once; the last two have one level, and two."""
    coarse = torch.rand(num, channels, 5, 5)
    images = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic")
    images = (images + 0.05 * torch.randn(images.shape)) * 255
    images[-2:] = 77
    images[-1, :, : height // 3] = 200
    return images.clamp(0, 255).to(torch.uint8)


def difference(fast: Tensor, plain: Tensor) -> list[float]:
    """The largest difference and the share of the values that differ."""
    apart = (fast.cpu().double() - plain.cpu().double()).abs()
    return [apart.max().item(), (apart > 0).double().mean().item()]


def on_device(*tensors: Tensor | None) -> list[Tensor | None]:
    """The tensors on the device under test."""
    return [None if each is None else each.to(DEVICE) for each in tensors]


def operation(name: str, channels: int, size: tuple[int, int]) -> list[float]:
    """One operation, each sample with another value."""
    images = pictures(4, channels, *size)
    values = torch.tensor(VALUES.get(name, [-0.3, 0.3, 0.7, 1.9]))
    choice, fill = torch.zeros(4, dtype=torch.int64), FILL[:channels]
    found = [0.0, 0.0]
    cubic = torch.tensor([True, False, True, False])
    for is_cubic in (None, cubic) if name in MOVING else (None,):
        fast = apply_triton(
            *on_device(images), (name,), *on_device(choice, values), fill,
            *on_device(is_cubic),
        )  # fmt: skip
        plain = apply_torch(images, (name,), choice, values, fill, is_cubic)
        found = list(map(max, found, difference(fast, plain)))
    return found


def all_operations(*others: str) -> list[float]:
    """Every operation of RandAugment, others and none, side by side in a batch."""
    names = (*RAND_AUGMENT_OPERATIONS, *others)
    choice = torch.arange(-1, len(names))
    images = pictures(len(choice), 3, 20, 26)
    given = (choice, torch.full((len(choice),), 0.8))
    cubic = choice % 2 == 0
    fast = apply_triton(
        *on_device(images), names, *on_device(*given), FILL, *on_device(cubic)
    )
    return difference(fast, apply_torch(images, names, *given, FILL, cubic))


def window(padding: int, flips: bool, fill: str, channels: int) -> list[float]:
    """A padded crop, a flip, or both."""
    images = pictures(5, channels, 50, 47)
    offset = torch.randint(0, 2 * padding + 1, (5, 2)) if padding else None
    is_flipped = torch.tensor([True, False] * 2 + [True]) if flips else None
    plain = crop_and_flip(images, offset, is_flipped, padding, fill)
    with mock.patch.object(augment_triton, "has_kernel", return_value=True):
        fast = crop_and_flip(
            *on_device(images, offset, is_flipped), padding=padding, fill=fill
        )
    return difference(fast, plain)


def everything(settings: Augmentation, size: tuple[int, int]) -> list[float]:
    """All of augmentation, draws included."""
    images, labels, indices = pictures(4, 3, *size), torch.arange(4), torch.arange(4)
    rng = CounterRng.of(1, 2, indices)
    plain, targets = augment(images, labels, rng, settings, 10)
    with mock.patch.object(augment_triton, "has_kernel", return_value=True):
        rng = CounterRng.of(1, 2, indices.to(DEVICE))
        fast, others = augment(*on_device(images, labels), rng, settings, 10)
    torch.testing.assert_close(others.cpu(), targets)
    return difference(fast, plain)


def keys_and_bits() -> list[float]:
    """Draws of every sign, seed and length; 1 if any bit differs."""
    wrong = 0
    indices = torch.randint(-(2**63), 2**63 - 1, (300,))
    for seed in (0, 1, 16, -5, 2**62 + 9):
        given = (torch.tensor(seed + 7), indices)
        plain = draw_bits.draw_keys_reference(seed, *given)
        fast = draw_bits.draw_keys(seed, *on_device(*given))
        for found, wanted in zip(fast, plain, strict=True):
            wrong += int((found.cpu() != wanted).sum())
    for word, num in ((5, 1), (-(2**60) - 7, 23), (2**62 + 1, 16)):
        fast = draw_bits.draw_bits(*on_device(indices), word, num)
        plain = draw_bits.draw_bits_reference(indices, word, num)
        wrong += int((fast.cpu() != plain).sum())
    return [float(wrong > 0), float(wrong)]


def operators() -> list[float]:
    """Whether compilers are told the truth about the operators' results."""
    images, number = pictures(2, 3, 5, 7), torch.tensor([1, 2])
    window = (images, number, number, number > 1, False)
    codes, values = number.int(), torch.rand(2)
    box = torch.tensor([[1, 3, 2, 6]] * 2)
    fill, scale = torch.zeros(3, dtype=torch.uint8), torch.rand(3)
    mixed = (images, values, box, 2, scale, scale, box, number, 5)
    for operator, given in (
        (augment_triton.crop_and_flip.operator, window),
        (
            augment_triton.apply_operations.operator,
            (images, codes, values, torch.rand(2, 6), fill),
        ),
        (augment_triton.mix_normalise_erase.operator, mixed),
        (draw_bits.draw_keys_operator, (1, torch.tensor(2), number)),
        (draw_bits.draw_bits_operator, (number, 3, 4)),
    ):
        arguments = [
            each.to(DEVICE) if isinstance(each, Tensor) else each for each in given
        ]
        checks = ("test_schema", "test_faketensor")
        torch.library.opcheck(operator, tuple(arguments), test_utils=checks)
    return [0.0, 0.0]


def main() -> None:
    """Prints one JSON object: case, then largest difference and share."""
    torch.manual_seed(0)
    cases = {"operators": operators(), "keys and bits": keys_and_bits()}
    cases["all operations"] = all_operations()
    # Those without a kernel, the user's own among them, do not keep others from theirs.
    register_augmentation("darker")(lambda images, values: images // 2)
    cases["with torch"] = all_operations("gaussian_blur", "darker", "hue", "grayscale")
    for name in sorted(name for name, each in OPERATIONS.items() if each.kernel):
        cases[name] = operation(name, 3, (15, 17))
    for name in ("contrast", "equalize", "saturation", "rotate"):
        cases[f"{name} grey"] = operation(name, 1, (15, 17))
    # More pixels than a program takes, and than it counts at a time.
    for name in ("auto_contrast", "contrast", "sharpness", "invert"):
        cases[f"{name} large"] = operation(name, 1, (68, 64))
    for padding, flips, fill in (
        (3, False, "zero"),
        (4, True, "zero"),
        (5, True, "reflect"),
        (0, True, "zero"),
    ):
        cases[f"window {padding} {flips} {fill}"] = window(padding, flips, fill, 2)
    for name, settings in SETTINGS.items():
        cases[f"augment {name}"] = everything(settings, (15, 17))
    settings = dataclasses.replace(PUBLISHED, rand_augment=None, erase=1.0)
    cases["augment large"] = everything(settings, (40, 54))
    print(json.dumps(cases))


if __name__ == "__main__":
    main()
