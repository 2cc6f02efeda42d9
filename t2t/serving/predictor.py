"""Predicts the classes of images with a trained model."""

import io
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any, TextIO, TypeAlias

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from t2t.data.augment.pipeline import normalise
from t2t.data.crops import CenterCrop, apply_crop, min_side_for
from t2t.data.decoding.damage import DamagedImage
from t2t.data.decoding.decode import decode_each, image_size
from t2t.data.decoding.headers import DEFAULT_MAX_PIXELS
from t2t.data.decoding.levels import levels_of, pixels_of
from t2t.data.decoding.shrinking import shrunk_size
from t2t.data.resources import num_cores
from t2t.data.rng import CounterRng
from t2t.data.sources.storage import read_whole
from t2t.errors import UserError, first_line
from t2t.models.trained import TrainedModel, load_trained
from t2t.ops.ragged import Ragged
from t2t.serving.inputs import damage, find_images
from t2t.shapes import Images, Pixels

ImageLike: TypeAlias = str | os.PathLike[str] | bytes | Image.Image | Tensor | Any
"""A path, an encoded file, a Pillow image, or uint8 pixels.

Tensors are channels × height × width, NumPy arrays height × width (× channels).
"""

# Decoded photographs are large: at most this many, with this many pixels in all, are
# in memory before they are cropped.
_NUM_DECODED = 16
_PIXELS_DECODED = 1 << 26
# Pillow reads an image's file on first use, which is not thread-safe.
_ONE_READER = Lock()


TOP = 5
"""Classes of a prediction."""
THRESHOLD = 0.5
"""Probability from which a class is predicted, with several labels an image."""


@dataclass(frozen=True)
class ClassProbability:
    """A class and its probability."""

    index: int
    class_name: str
    """As in the training data."""
    name: str
    """Readable name; differs from `class_name` only for WordNet ids."""
    probability: float


@dataclass(frozen=True)
class Prediction:
    """The most probable classes of one image, best first.

    With several labels an image, those that reach the threshold.
    """

    image: str
    classes: tuple[ClassProbability, ...]
    below: ClassProbability | None = None
    """The most probable class, if none reaches the threshold."""

    @property
    def best(self) -> ClassProbability:
        """The most probable class."""
        best = self.below or self.classes[0]
        assert best is not None
        return best


class Predictor:
    """A trained model that predicts from images of any form and size."""

    def __init__(
        self,
        path: str | os.PathLike[str] | TrainedModel,
        device: torch.device | str | None = None,
        max_pixels: int = DEFAULT_MAX_PIXELS,
        threshold: float = THRESHOLD,
    ) -> None:
        """`threshold` is of models that predict several labels an image."""
        self.max_pixels, self.threshold = max_pixels, threshold
        self.trained = path if isinstance(path, TrainedModel) else load_trained(path)
        if device is None:
            device = torch.accelerator.current_accelerator(check_available=True)
        try:
            self.device = torch.device(device or "cpu")
            self.model = self.trained.model.eval().to(self.device)
        # An AssertionError is how torch says that it was built without a device.
        except (RuntimeError, AssertionError) as error:
            raise UserError(
                f"device={str(device)!r} cannot be used here ({first_line(error)}); "
                "give cuda, mps, cpu, or nothing for the best available."
            ) from error
        self.readable_names = self.trained.readable_names
        self.crop = CenterCrop(
            size=self.trained.image_size, fraction=self.trained.crop_fraction
        )

    def predict(
        self,
        images: ImageLike | Sequence[ImageLike],
        top: int | None = None,
        batch_size: int = 32,
    ) -> list[Prediction]:
        """The most probable classes of each image; an error if one is damaged.

        These are the `top` ones; None is 5, or with several labels an image all that
        reach the threshold.
        """
        several = images if isinstance(images, list | tuple) else [images]
        predictions = []
        for result in self.predict_each(several, top, batch_size):
            if isinstance(result, DamagedImage):
                raise UserError(f"{result.name} cannot be read: {result.reason}.")
            predictions.append(result)
        return predictions

    def predict_each(
        self, images: Iterable[ImageLike], top: int | None = None, batch_size: int = 32
    ) -> Iterator[Prediction | DamagedImage]:
        """The prediction for each image, or its error, in order."""
        if (top is not None and top < 1) or batch_size < 1:
            raise UserError(
                f"top={top} and batch_size={batch_size} must both be 1 or more."
            )
        numbered = enumerate(images)
        with ExitStack() as ending:
            pool = None
            while batch := list(islice(numbered, batch_size)):
                # For one image, threads would only compete with the model.
                if pool is None and len(batch) > 1:
                    pool = ThreadPoolExecutor(num_cores(), "t2t-decode")
                    ending.enter_context(pool)
                yield from self._predict_batch(batch, top, pool)

    def model_input(self, image: ImageLike) -> Pixels:
        """The model's input for an image before normalisation."""
        names = [name_of(image, 0)]
        damaged: dict[int, DamagedImage] = {}
        read = [read_image(image, names[0])]
        pixels = self._pixels([0], read, names, damaged, None)
        for found in damaged.values():
            raise UserError(f"{found.name} cannot be read: {found.reason}.")
        return pixels[0]

    def normalised(self, pixels: Pixels) -> Images:
        """Normalised pixels, the model's input."""
        return normalise(pixels, self.trained.mean, self.trained.std)

    def predict_named(
        self,
        words: Iterable[str],
        listed: TextIO,
        top: int | None = None,
        batch_size: int = 32,
    ) -> Iterator[Prediction | DamagedImage]:
        """Predictions for files, images in folders and, for `-`, paths in a list."""
        yield from self.predict_each(find_images(words, listed), top, batch_size)

    def _predict_batch(
        self,
        batch: list[tuple[int, ImageLike]],
        top: int | None,
        pool: ThreadPoolExecutor | None,
    ) -> Iterator[Prediction | DamagedImage]:
        names = [name_of(image, number) for number, image in batch]
        each = map if pool is None else pool.map
        read = list(each(read_image, [image for _, image in batch], names))
        damaged: dict[int, DamagedImage] = {}
        pixels: list[Pixels] = []
        for indices in decoding_groups(read, min_side_for(self.crop)):
            pixels += self._pixels(indices, read, names, damaged, pool)
        classes = iter(self._classify(torch.cat(pixels), top) if pixels else [])
        for index, name in enumerate(names):
            if index in damaged:
                yield damaged[index]
            else:
                found = next(classes)
                yield self._prediction(name, found, top)

    def _pixels(
        self,
        indices: Sequence[int],
        read: Sequence[bytes | Tensor | DamagedImage],
        names: Sequence[str],
        damaged: dict[int, DamagedImage],
        pool: ThreadPoolExecutor | None,
    ) -> list[Pixels]:
        """Images cropped as in evaluation; adds damaged ones to `damaged`."""
        whole = []
        for index in indices:
            data = read[index]
            if isinstance(data, DamagedImage):
                damaged[index] = data
            else:
                whole.append((index, data))
        results = decode_each(
            [data for _, data in whole],
            channels=self.trained.channels,
            device=self.device,
            pool=pool,
            names=[names[index] for index, _ in whole],
            min_side=min_side_for(self.crop),
            max_pixels=self.max_pixels,
        )
        images = []
        for (index, _), result in zip(whole, results, strict=True):
            if isinstance(result, DamagedImage):
                damaged[index] = DamagedImage(names[index], result.reason)
            else:
                images.append(result)
        if not images:
            return []
        rng = CounterRng.of(0, 0, torch.arange(len(images)))  # a centre draws nothing
        return [apply_crop(self.crop, Ragged.from_images(images), rng)]

    @torch.inference_mode()
    def _classify(
        self, pixels: Pixels, top: int | None
    ) -> list[tuple[ClassProbability, ...]]:
        """The `top` classes; without, enough to choose from."""
        trained = self.trained
        logits = self.model(self.normalised(pixels)).float()
        if not logits.isfinite().all():
            raise UserError(
                f"{trained.path} gives NaN or infinity: its weights are damaged; name "
                "others."
            )
        several = trained.is_multilabel
        probabilities = logits.sigmoid() if several else logits.softmax(1)
        most = top or (logits.shape[1] if several else TOP)
        likely = probabilities.topk(min(most, logits.shape[1]), dim=1)
        rows = zip(likely.indices.tolist(), likely.values.tolist(), strict=True)
        return [
            tuple(
                ClassProbability(
                    index,
                    trained.class_names[index],
                    self.readable_names[index],
                    probability,
                )
                for index, probability in zip(indices, probabilities, strict=True)
            )
            for indices, probabilities in rows
        ]

    def _prediction(
        self, name: str, classes: tuple[ClassProbability, ...], top: int | None
    ) -> Prediction:
        """The prediction of an image, given its most probable classes."""
        if top is not None or not self.trained.is_multilabel:
            return Prediction(name, classes)
        likely = tuple(each for each in classes if each.probability >= self.threshold)
        return Prediction(name, likely, None if likely else classes[0])


def decoding_groups(
    images: Iterable[bytes | Tensor | DamagedImage], min_side: int | None = None
) -> Iterator[list[int]]:
    """Indices of images, in groups whose pixels fit into memory."""
    group: list[int] = []
    total = 0
    for index, image in enumerate(images):
        size = image_size(image) if isinstance(image, bytes) else (0, 0)
        num = math.prod(shrunk_size(*size, min_side))
        full = len(group) == _NUM_DECODED or total + num > _PIXELS_DECODED
        if group and full:
            yield group
            group, total = [], 0
        group.append(index)
        total += num
    if group:
        yield group


def name_of(image: ImageLike, number: int) -> str:
    """The name of an image: its path or its number."""
    if isinstance(image, DamagedImage):
        return image.name
    if isinstance(image, str | os.PathLike):
        return os.fspath(image)
    return getattr(image, "filename", "") or f"image {number}"


def read_image(image: ImageLike, name: str) -> bytes | Tensor | DamagedImage:
    """The encoded file or the pixels of an image, or why it cannot be read."""
    if isinstance(image, str | os.PathLike):
        try:
            return read_whole(Path(image).expanduser())
        except (OSError, MemoryError) as error:
            return damage(name, error)
        except ValueError as error:  # a NUL in it
            return DamagedImage(name, f"not a path ({error})")
    if isinstance(image, bytes | DamagedImage):
        return image
    if isinstance(image, Image.Image):
        try:
            return stored(image)
        except Exception as error:  # of any kind: Pillow reads the file only now
            return damage(name, error)
    if isinstance(image, np.ndarray):
        planes = image[None] if image.ndim == 2 else np.moveaxis(image, -1, 0)
        image = torch.from_numpy(np.ascontiguousarray(planes))
    if not isinstance(image, Tensor) or image.ndim != 3 or image.dtype != torch.uint8:
        raise UserError(
            f"{name} is a {kind_of(image)}; give a path, bytes, a Pillow image, "
            "or uint8 pixels (a tensor of channels × height × width, an array of "
            "height × width × channels)."
        )
    return image if image.numel() else DamagedImage(name, "it has no pixels")


def stored(picture: Image.Image) -> bytes | Tensor:
    """A Pillow image as the bytes of a lossless file, decoded like any other file.

    An image with more than 8 bits per pixel is converted to pixels directly.
    """
    with _ONE_READER:
        upright = ImageOps.exif_transpose(picture)
    upright.format = picture.format
    if (levels := levels_of(upright)) is not None:
        return pixels_of(upright, "L", levels)
    if upright.mode not in ("1", "L", "LA", "P", "RGB", "RGBA"):
        upright = upright.convert("RGB")
    file = io.BytesIO()
    upright.save(file, "PNG", compress_level=1)
    return file.getvalue()


def kind_of(image: object) -> str:
    """A description of an object that is not an image."""
    if isinstance(image, Tensor):
        shape = " × ".join(map(str, image.shape))
        return f"{str(image.dtype).removeprefix('torch.')} tensor of {shape}"
    return type(image).__name__
