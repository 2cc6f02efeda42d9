"""Small sets: decoded once, kept on the device, batches taken there by index."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from t2t.data.crops import Crop, apply_crop, as_batch
from t2t.data.draws import Draws
from t2t.data.loading import (
    Loader,
    Part,
    batch_of,
    num_cores,
    part_of,
    ragged_of,
)
from t2t.data.order import Batch, Order
from t2t.data.sources.base import Indices
from t2t.shapes import Pixels

_CHUNK = 256


class ResidentImages:
    """All images of a source as uint8 on a device, each at its own size."""

    def __init__(
        self, loader: Loader, device: torch.device, num_workers: int | None = None
    ) -> None:
        self.device = device
        self.labels = loader.source.labels
        num_images = len(loader.source)
        chunks = [
            range(start, min(start + _CHUNK, num_images))
            for start in range(0, num_images, _CHUNK)
        ]
        parts: list[Part] = []
        pool = ThreadPoolExecutor(num_workers or num_cores(), "t2t-decode")
        try:
            for chunk in chunks:
                results = list(pool.map(loader.load, chunk))
                loaded = [index for index, _ in results]
                images = [pixels for _, pixels in results]
                parts.append(part_of(loaded, images, device))
        finally:
            pool.shutdown(cancel_futures=True)
        self.loaded: Indices = np.array([i for part in parts for i in part.indices])
        """Which image stands at each index: another one where it was damaged."""
        self.ragged = ragged_of(parts, loader.channels)


class ResidentBatches:
    """Batches gathered on the device without the host waiting for it."""

    def __init__(
        self,
        images: ResidentImages,
        order: Order,
        crop: Crop | None = None,
        *,
        description: str = "",
    ) -> None:
        self.images = images
        self.order = order
        self.crop = crop
        self.description = description
        if crop is None:
            self._pixels: Pixels = as_batch(images.ragged)

    def steps(self, start: int, stop: int) -> Iterator[Batch]:
        """The batches of these steps, in order."""
        for step in range(start, stop):
            yield self._batch(step)

    def _batch(self, step: int) -> Batch:
        slots = self.order.slots(step)
        device = self.images.device
        loaded = self.images.loaded[slots.indices]
        if self.crop is None:
            place = torch.from_numpy(slots.indices)
            if device.type == "cuda":
                place = place.pin_memory().to(device, non_blocking=True)
            pixels = self._pixels.index_select(0, place.to(device))
        else:
            ragged = self.images.ragged.select(torch.from_numpy(slots.indices))
            draws = Draws.of(self.order.seed, step, torch.from_numpy(slots.keys))
            pixels = apply_crop(self.crop, ragged, draws)
        return batch_of(pixels, loaded, slots, self.images.labels, device)
