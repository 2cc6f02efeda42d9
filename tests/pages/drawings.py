"""Pictures of cats, dogs and cars, drawn by program."""

import random
from collections.abc import Callable
from pathlib import Path

from PIL import Image, ImageDraw

SCALE = 4
"""Pictures are drawn larger and shrunk, for smooth edges."""

FURS = ((150, 120, 90), (120, 110, 100), (190, 140, 80), (90, 85, 80))
PAINTS = ((170, 30, 30), (30, 60, 150), (200, 200, 205), (25, 25, 30))


class Sheet:
    """A picture under way; coordinates are shares of its size."""

    def __init__(self, size: int, colour: tuple[int, ...]) -> None:
        self.size = size
        self.image = Image.new("RGB", (SCALE * size,) * 2, colour)
        self.draw = ImageDraw.Draw(self.image)

    def at(self, *shares: float) -> list[float]:
        return [share * self.image.width for share in shares]

    def disc(self, x: float, y: float, rx: float, ry: float, fill: object) -> None:
        self.draw.ellipse(self.at(x - rx, y - ry, x + rx, y + ry), fill=fill)

    def shape(self, *shares: float, fill: object) -> None:
        self.draw.polygon(self.at(*shares), fill=fill)

    def line(self, *shares: float, fill: object) -> None:
        self.draw.line(self.at(*shares), fill=fill, width=SCALE)

    def finished(self) -> Image.Image:
        return self.image.resize((self.size, self.size), Image.Resampling.LANCZOS)


def wall(rng: random.Random) -> tuple[int, ...]:
    return tuple(rng.randint(90, 200) for _ in range(3))


def draw_cat(seed: int, size: int = 32) -> Image.Image:
    """A cat's face: pointed ears, slit pupils, whiskers."""
    rng = random.Random(seed)
    sheet, fur = Sheet(size, wall(rng)), rng.choice(FURS)
    for side in (-1, 1):
        ear = (
            0.5 + side * 0.34,
            0.42,
            0.5 + side * 0.09,
            0.23,
            0.5 + side * 0.31,
            0.03,
        )
        sheet.shape(*ear, fill=fur)
        sheet.shape(
            *(0.5 + side * 0.30, 0.33, 0.5 + side * 0.16, 0.24),
            *(0.5 + side * 0.28, 0.12),
            fill=(210, 160, 150),
        )
    sheet.disc(0.5, 0.55, 0.36, 0.32, fur)
    for side in (-1, 1):
        sheet.disc(0.5 + side * 0.15, 0.5, 0.07, 0.06, (180, 200, 80))
        sheet.disc(0.5 + side * 0.15, 0.5, 0.02, 0.06, (10, 10, 10))
    sheet.disc(0.5, 0.7, 0.16, 0.1, (235, 230, 225))
    sheet.shape(0.46, 0.61, 0.54, 0.61, 0.5, 0.66, fill=(200, 110, 110))
    for side in (-1, 1):
        for row in (-1, 0, 1):
            whisker = (0.5 + side * 0.07, 0.68 + 0.02 * row)
            end = (0.5 + side * 0.4, 0.66 + 0.06 * row)
            sheet.line(*whisker, *end, fill=(240, 240, 240))
    return sheet.finished()


def draw_dog(seed: int, size: int = 32) -> Image.Image:
    """A dog's face: hanging ears, a long muzzle, a tongue."""
    rng = random.Random(seed)
    sheet, fur = Sheet(size, wall(rng)), rng.choice(FURS)
    dark = tuple(level // 2 for level in fur)
    sheet.disc(0.5, 0.47, 0.29, 0.34, fur)
    for side in (-1, 1):
        sheet.disc(0.5 + side * 0.3, 0.45, 0.1, 0.26, dark)
        sheet.disc(0.5 + side * 0.12, 0.38, 0.045, 0.045, (20, 15, 10))
    sheet.disc(0.5, 0.62, 0.17, 0.2, (225, 215, 200))
    sheet.disc(0.5, 0.52, 0.075, 0.055, (15, 15, 15))
    sheet.disc(0.5, 0.8, 0.05, 0.1, (220, 90, 100))
    sheet.line(0.5, 0.57, 0.5, 0.7, fill=(60, 40, 40))
    return sheet.finished()


def draw_car(seed: int, size: int = 32) -> Image.Image:
    """A car from the side, on a road."""
    rng = random.Random(seed)
    sheet, paint = Sheet(size, (160, 190, 220)), rng.choice(PAINTS)
    sheet.shape(0, 0.68, 1, 0.68, 1, 1, 0, 1, fill=(90, 90, 90))
    sheet.shape(0.22, 0.5, 0.34, 0.3, 0.66, 0.3, 0.8, 0.5, fill=paint)
    sheet.shape(0.28, 0.49, 0.37, 0.34, 0.49, 0.34, 0.49, 0.49, fill=(200, 225, 235))
    sheet.shape(0.52, 0.49, 0.52, 0.34, 0.63, 0.34, 0.73, 0.49, fill=(200, 225, 235))
    sheet.shape(0.06, 0.5, 0.94, 0.5, 0.96, 0.7, 0.04, 0.7, fill=paint)
    for x in (0.26, 0.75):
        sheet.disc(x, 0.7, 0.1, 0.1, (20, 20, 20))
        sheet.disc(x, 0.7, 0.05, 0.05, (170, 170, 170))
    return sheet.finished()


DRAWINGS: dict[str, Callable[[int], Image.Image]] = {
    "car": draw_car,
    "cat": draw_cat,
    "dog": draw_dog,
}


def write_photos(folder: Path, num: int) -> None:
    """Class folders with so many JPEGs each."""
    for name, draw in DRAWINGS.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for index in range(num):
            draw(index).save(folder / name / f"{index}.jpg", quality=90)
