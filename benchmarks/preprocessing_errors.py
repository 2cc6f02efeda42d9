"""Measures how our crops differ from torchvision's, in grey levels.

    python benchmarks/preprocessing_errors.py path/to/photographs --out rows.json

Training: the same boxes and filters, with our single resize against crop, then resize,
as in the reference. Evaluation: one resize of a box against resize, then center crop,
at 224 px with a fraction of 0.9. Large photographs: the same for enlarged photographs,
which we decode at half their size.
"""

import argparse
import io
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from kept_rows import keep_rows
from PIL import Image
from torchvision.transforms import v2
from torchvision.transforms.functional import pil_to_tensor

from t2t.data.crops import CenterCrop, RandomCrop, apply_crop, min_side_for
from t2t.data.decoding.decode import decode
from t2t.data.rng import CounterRng
from t2t.ops.crop_resize import Filter
from t2t.ops.ragged import Ragged

SIZE, FRACTION = (224, 224), 0.9
CENTRE = CenterCrop(size=SIZE, fraction=FRACTION)
FILTERS = {
    int(Filter.BILINEAR): Image.Resampling.BILINEAR,
    int(Filter.BICUBIC): Image.Resampling.BICUBIC,
}


def training_pair(photo: Image.Image, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Our random crop, and the same box cropped before resizing."""
    crop = RandomCrop(size=SIZE)
    rng = CounterRng.of(0, 0, torch.tensor([number]))
    ragged = Ragged.from_images([pil_to_tensor(photo)])
    plan = crop.plan(ragged.heights, ragged.widths, rng)
    box = tuple(int(side) for side in plan.boxes[0].tolist())
    resized = photo.crop(box).resize(SIZE, FILTERS[int(plan.filters[0])])
    ours = apply_crop(crop, ragged, rng)[0].permute(1, 2, 0).numpy()
    return ours, np.asarray(resized)


def evaluation_pair(photo: Image.Image, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Our center crop, and torchvision's resize and center crop."""
    return centre(pil_to_tensor(photo), number), centre_by_torchvision(photo)


def large_pair(
    photo: Image.Image, number: int, remainder: int
) -> tuple[np.ndarray, np.ndarray]:
    """The same for a JPEG with a short side of about 1,400 pixels.

    Both sides are even, or with a remainder of 1 odd.
    """
    scale = 1400 / min(photo.size)
    width, height = (round(side * scale) // 2 * 2 + remainder for side in photo.size)
    file = io.BytesIO()
    large = photo.resize((width, height), Image.Resampling.LANCZOS)
    large.save(file, "JPEG", quality=92)
    ours = decode(file.getvalue(), min_side=min_side_for(CENTRE))
    return centre(ours, number), centre_by_torchvision(Image.open(file))


def centre(pixels: torch.Tensor, number: int) -> np.ndarray:
    """Our center crop of an image."""
    rng = CounterRng.of(0, 0, torch.tensor([number]))
    ours = apply_crop(CENTRE, Ragged.from_images([pixels]), rng)[0]
    return ours.permute(1, 2, 0).numpy()


def centre_by_torchvision(photo: Image.Image) -> np.ndarray:
    """The same by a resize and a central crop."""
    steps = v2.Compose(
        [
            v2.Resize(
                int(SIZE[0] / FRACTION), interpolation=v2.InterpolationMode.BICUBIC
            ),
            v2.CenterCrop(SIZE),
        ]
    )
    return np.asarray(steps(photo))


def row(
    name: str,
    pair: Callable[[Image.Image, int], tuple[np.ndarray, np.ndarray]],
    photos: list[Path],
) -> dict[str, object]:
    """Differences over all photographs."""
    found = []
    for number, path in enumerate(photos):
        ours, theirs = pair(Image.open(path).convert("RGB"), number)
        found.append(np.abs(ours.astype(int) - theirs.astype(int)))
    levels = np.stack(found)
    border = np.ones(SIZE, dtype=bool)
    border[4:-4, 4:-4] = False
    return {
        "what": name,
        "photographs": len(photos),
        "differing_share": round(float((levels > 0).mean()), 6),
        "differing_share_inside": round(float((levels[:, ~border] > 0).mean()), 6),
        "mean_levels": round(float(levels.mean()), 5),
        "mean_levels_border": round(float(levels[:, border].mean()), 5),
        "largest_level": int(levels.max()),
    }


def main() -> None:
    """Compares all, and prints and keeps the rows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("photographs", type=Path)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    photos = sorted(
        path
        for path in given.photographs.rglob("*")
        if path.suffix.lower() in (".jpg", ".jpeg", ".png")
    )
    pairs = {
        "training crops": training_pair,
        "evaluation": evaluation_pair,
        "evaluation of large photographs, even sides": partial(large_pair, remainder=0),
        "evaluation of large photographs, odd sides": partial(large_pair, remainder=1),
    }
    rows = [row(name, pair, photos) for name, pair in pairs.items()]
    for each in rows:
        print(each)
    keep_rows(given.out, rows)


if __name__ == "__main__":
    main()
