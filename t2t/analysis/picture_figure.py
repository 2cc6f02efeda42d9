"""A figure of pictures in columns, a row for each image."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw, ImageFont

from t2t.atomic import atomic_file
from t2t.errors import UserError
from t2t.shapes import Pixels

MIN_SIDE = 128
"""Smaller pictures are enlarged to about this many pixels."""
GAP = 8
FONT_SIZE = 13


def draw_table(pictures: Mapping[str, Pixels], path: str | Path) -> Path:
    """Draws pictures of equal sizes into a PNG, a titled column for each key."""
    if not pictures or not all(len(each) for each in pictures.values()):
        raise UserError("There are no pictures to draw; give at least one image.")
    columns = {title: enlarged(each) for title, each in pictures.items()}
    num_rows, height, width, _ = next(iter(columns.values())).shape
    font = ImageFont.load_default(FONT_SIZE)
    # A title is never cut.
    width_needed = max(round(font.getlength(title)) for title in columns)
    step_x, step_y = max(width, width_needed) + GAP, height + GAP
    top = FONT_SIZE + 2 * GAP
    size = (GAP + step_x * len(columns), top + step_y * num_rows)
    canvas = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(canvas)
    for column, (title, images) in enumerate(columns.items()):
        left = GAP + column * step_x
        draw.text((left, GAP), title, fill="black", font=font)
        for row, image in enumerate(images):
            canvas.paste(Image.fromarray(image), (left, top + row * step_y))
    file = Path(path).expanduser()
    with atomic_file(file) as part:
        canvas.save(part, format="png")
    return file


def enlarged(images: Pixels) -> UInt8[np.ndarray, "batch height width 3"]:
    """Colour images with channels last, each pixel repeated if they are small."""
    channels = images.shape[1]
    colour = images[:, :3] if channels >= 3 else images[:, :1].expand(-1, 3, -1, -1)
    times = max(1, round(MIN_SIDE / min(images.shape[2:])))
    pixels = colour.cpu().numpy().transpose(0, 2, 3, 1)
    return np.ascontiguousarray(pixels.repeat(times, 1).repeat(times, 2))
