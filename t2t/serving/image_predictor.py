"""What all predictors share: from any images, in batches, to named classes."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import islice
from typing import Generic, TextIO, TypeVar

from t2t.data.decoding.damage import DamagedImage
from t2t.data.resources import num_cores
from t2t.errors import UserError
from t2t.serving.inputs import find_images
from t2t.serving.prediction import TOP, ClassProbability, Prediction
from t2t.serving.read_image import (
    ImageLike,
    ReadImage,
    decoding_groups,
    name_of,
    read_image,
)

PixelBatch = TypeVar("PixelBatch")


class ImagePredictor(ABC, Generic[PixelBatch]):
    """Predicts classes from images of any form and size."""

    class_names: tuple[str, ...]
    readable_names: tuple[str, ...]
    is_multilabel: bool
    """Whether an image may have several classes, or none."""
    threshold: float
    """Probability from which a class is predicted, with several labels per image."""
    min_side: int | None
    """Large images may be shrunk to this short side as they are decoded."""

    def predict(
        self,
        images: ImageLike | Sequence[ImageLike],
        top: int | None = None,
        batch_size: int = 32,
    ) -> list[Prediction]:
        """The most probable classes of each image; an error if one is damaged.

        These are the `top` ones; None is 5, or with several labels per image all that
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

    def predict_named(
        self,
        words: Iterable[str],
        listed: TextIO,
        top: int | None = None,
        batch_size: int = 32,
    ) -> Iterator[Prediction | DamagedImage]:
        """Predictions for files, images in folders and, for `-`, paths in a list."""
        yield from self.predict_each(find_images(words, listed), top, batch_size)

    def model_input(self, image: ImageLike) -> PixelBatch:
        """The model's input for an image before normalisation."""
        names = [name_of(image, 0)]
        damaged: dict[int, DamagedImage] = {}
        read = [read_image(image, names[0])]
        pixels = self._pixels([0], read, names, damaged, None)
        for found in damaged.values():
            raise UserError(f"{found.name} cannot be read: {found.reason}.")
        return pixels[0]

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
        pixels: list[PixelBatch] = []
        for indices in decoding_groups(read, self.min_side):
            pixels += self._pixels(indices, read, names, damaged, pool)
        cat = self._joined(pixels) if pixels else None
        classes = iter([] if cat is None else self._classify(cat, top))
        for index, name in enumerate(names):
            if index in damaged:
                yield damaged[index]
            else:
                yield self._prediction(name, next(classes), top)

    def num_likely(self, top: int | None) -> int:
        """How many classes to choose a prediction from."""
        num_classes = len(self.class_names)
        return min(top or (num_classes if self.is_multilabel else TOP), num_classes)

    def _prediction(
        self, name: str, classes: tuple[ClassProbability, ...], top: int | None
    ) -> Prediction:
        """The prediction of an image, given its most probable classes."""
        if top is not None or not self.is_multilabel:
            return Prediction(name, classes)
        likely = tuple(each for each in classes if each.probability >= self.threshold)
        return Prediction(name, likely, None if likely else classes[0])

    def named(
        self, indices: Iterable[int], probabilities: Iterable[float]
    ) -> tuple[ClassProbability, ...]:
        """Classes by their numbers, with their names and probabilities."""
        return tuple(
            ClassProbability(
                index, self.class_names[index], self.readable_names[index], probability
            )
            for index, probability in zip(indices, probabilities, strict=True)
        )

    @abstractmethod
    def _pixels(
        self,
        indices: Sequence[int],
        read: Sequence[ReadImage],
        names: Sequence[str],
        damaged: dict[int, DamagedImage],
        pool: ThreadPoolExecutor | None,
    ) -> list[PixelBatch]:
        """Images cropped as in evaluation; adds damaged ones to `damaged`."""

    @abstractmethod
    def _joined(self, pixels: Sequence[PixelBatch]) -> PixelBatch:
        """Several batches as one."""

    @abstractmethod
    def _classify(
        self, pixels: PixelBatch, top: int | None
    ) -> list[tuple[ClassProbability, ...]]:
        """The `top` classes of each image; without, enough to choose from."""
