"""How many altered copies are found as near-duplicates, and how many other pairs.

    python benchmarks/near_duplicates.py digits
    python benchmarks/near_duplicates.py path/to/cifar10 --train 10000 --val 2000
    python benchmarks/near_duplicates.py path/to/imagewoof --size 224 --crop 0.9

The training images are searched for the validation images as they are, which says how
many pairs the data itself has, and for altered copies of 200 training images.
"""

import argparse
import io

import numpy as np
import torch
from PIL import Image, ImageFilter

from t2t.analysis import near_duplicates
from t2t.analysis.near_duplicates import colour_features, find_near_duplicates
from t2t.data.augment.pipeline import normalise
from t2t.data.batches import evaluation_batches
from t2t.data.crops import CenterCrop
from t2t.data.decoding.decode import decode
from t2t.data.decoding.image_objects import stored
from t2t.data.sources import Source, open_splits
from t2t.data.sources.objects import ObjectSource
from t2t.probing.images import some_of

NUM_COPIES = 200
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def as_jpeg(image: Image.Image, quality: int) -> bytes:
    """A JPEG file of an image."""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return file.getvalue()


def resized(image: Image.Image, factor: float) -> Image.Image:
    """An image at another size."""
    size = tuple(max(1, round(factor * side)) for side in image.size)
    return image.resize(size, Image.Resampling.BICUBIC)


def cropped(image: Image.Image, share: float) -> Image.Image:
    """The middle of an image."""
    width, height = image.size
    left, top = ((side - share * side) / 2 for side in image.size)
    box = (left, top, width - left, height - top)
    return image.crop(tuple(map(round, box)))


KINDS = {
    "as it is": lambda image: image,
    "JPEG, quality 75": lambda image: as_jpeg(image, 75),
    "JPEG, quality 30": lambda image: as_jpeg(image, 30),
    "half the size": lambda image: resized(image, 0.5),
    "1.5 times the size": lambda image: resized(image, 1.5),
    "20 % brighter": lambda image: image.point(lambda value: min(255, 1.2 * value)),
    "blurred": lambda image: image.filter(ImageFilter.GaussianBlur(image.width / 100)),
    "middle 95 %": lambda image: cropped(image, 0.95),
    "middle 90 %": lambda image: cropped(image, 0.9),
    "grey": lambda image: image.convert("L"),
    "mirrored": lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
}


def colours(source: Source, size: int, crop: float) -> torch.Tensor:
    """The colours of all images of a source."""
    batches = evaluation_batches(
        source,
        batch_size=min(250, len(source)),
        crop=CenterCrop(size=(size, size), fraction=crop),
        device="cpu",
    )
    parts = [
        colour_features(normalise(batch.images, MEAN, STD)).half()[batch.valid]
        for batch in batches
    ]
    return torch.cat(parts)


def picture(source: Source, index: int) -> Image.Image:
    """An image of a source."""
    pixels = decode(source.read(index))
    return Image.fromarray(np.ascontiguousarray(pixels.permute(1, 2, 0).numpy()))


def main() -> None:
    """Prints a row for each kind of copy, with several limits of the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--train", type=int, default=10_000)
    parser.add_argument("--val", type=int, default=2_000)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--crop", type=float, default=1.0)
    parser.add_argument("--ratios", type=float, nargs="+", default=[0.4])
    given = parser.parse_args()
    splits = open_splits(given.data)
    train = some_of(splits.train, given.train, seed=0)
    val = some_of(splits.val, given.val, seed=0)
    searched = colours(train, given.size, given.crop)
    sets = {f"{len(val):,} validation images": colours(val, given.size, given.crop)}
    chosen = np.random.default_rng(0).permutation(len(train))[:NUM_COPIES]
    pictures = [picture(train, int(index)) for index in chosen]
    labels = np.zeros(len(pictures), np.int64)
    for name, alter in KINDS.items():
        copies = [alter(each) for each in pictures]
        items = [each if isinstance(each, bytes) else stored(each) for each in copies]
        source = ObjectSource(items, labels, (), name)
        sets[name] = colours(source, given.size, given.crop)
    for ratio in given.ratios:
        near_duplicates.MAX_RATIO = ratio
        print(f"{given.data}: {len(train):,} images searched, ratio {ratio:g}")
        for name, values in sets.items():
            pairs = find_near_duplicates(values, searched)
            if "validation" in name:
                print(f"  {name:<24} {len(pairs):5} pairs")
                continue
            right = [pair for pair in pairs if chosen[pair.first] == pair.second]
            share = 100 * len(right) / len(pictures)
            num_others = len(pairs) - len(right)
            print(f"  {name:<24} {share:5.1f} % found, {num_others} others")


if __name__ == "__main__":
    main()
