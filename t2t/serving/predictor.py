"""Predicts the classes of images with a trained model."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from t2t.data.augment.pipeline import normalise
from t2t.data.crops import CenterCrop, apply_crop, min_side_for
from t2t.data.decoding.damage import DamagedImage
from t2t.data.decoding.decode import decode_each
from t2t.data.decoding.headers import DEFAULT_MAX_PIXELS
from t2t.data.rng import CounterRng
from t2t.errors import UserError, first_line
from t2t.models.trained import TrainedModel, load_trained
from t2t.ops.ragged import Ragged
from t2t.serving.image_predictor import ImagePredictor
from t2t.serving.prediction import THRESHOLD, ClassProbability, Prediction
from t2t.serving.read_image import ImageLike, ReadImage, name_of
from t2t.shapes import Images, Pixels

__all__ = [
    "THRESHOLD",
    "ClassProbability",
    "ImageLike",
    "Prediction",
    "Predictor",
    "name_of",
]


class Predictor(ImagePredictor[Pixels]):
    """A trained model that predicts from images of any form and size."""

    def __init__(
        self,
        path: str | os.PathLike[str] | TrainedModel,
        device: torch.device | str | None = None,
        max_pixels: int = DEFAULT_MAX_PIXELS,
        threshold: float = THRESHOLD,
    ) -> None:
        """`threshold` is of models that predict several labels per image."""
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
        self.is_multilabel = self.trained.is_multilabel
        self.class_names = self.trained.class_names
        self.readable_names = self.trained.readable_names
        self.crop = CenterCrop(
            size=self.trained.image_size, fraction=self.trained.crop_fraction
        )
        self.min_side = min_side_for(self.crop)

    def normalised(self, pixels: Pixels) -> Images:
        """Normalised pixels, the model's input."""
        return normalise(pixels, self.trained.mean, self.trained.std)

    def probabilities_of(self, logits: Tensor) -> Tensor:
        """The probability of every class, from the model's logits."""
        return logits.sigmoid() if self.is_multilabel else logits.softmax(1)

    def _pixels(
        self,
        indices: Sequence[int],
        read: Sequence[ReadImage],
        names: Sequence[str],
        damaged: dict[int, DamagedImage],
        pool: ThreadPoolExecutor | None,
    ) -> list[Pixels]:
        whole: list[tuple[int, bytes | Tensor]] = []
        for index in indices:
            data = read[index]
            if isinstance(data, DamagedImage):
                damaged[index] = data
            elif isinstance(data, np.ndarray):
                whole.append((index, torch.from_numpy(np.ascontiguousarray(data))))
            else:
                whole.append((index, data))
        results = decode_each(
            [data for _, data in whole],
            channels=self.trained.channels,
            device=self.device,
            pool=pool,
            names=[names[index] for index, _ in whole],
            min_side=self.min_side,
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

    def _joined(self, pixels: Sequence[Pixels]) -> Pixels:
        return torch.cat(list(pixels))

    @torch.inference_mode()
    def _classify(
        self, pixels: Pixels, top: int | None
    ) -> list[tuple[ClassProbability, ...]]:
        logits = self.model(self.normalised(pixels)).float()
        if not logits.isfinite().all():
            raise UserError(
                f"{self.trained.path} outputs NaN or infinity: its weights are "
                "damaged; give other weights."
            )
        likely = self.probabilities_of(logits).topk(self.num_likely(top), dim=1)
        rows = zip(likely.indices.tolist(), likely.values.tolist(), strict=True)
        return [self.named(*row) for row in rows]
