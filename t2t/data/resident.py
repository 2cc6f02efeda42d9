"""Small sets: decoded once, kept on the device, batches taken there by index."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from t2t.data.crops import Crop, apply_crop, as_batch
from t2t.data.draws import Draws
from t2t.data.loading import (
    ImagePixels,
    Loader,
    Part,
    batch_of,
    decoded_on_gpu,
    default_gpu_share,
    num_cores,
    part_of,
    ragged_of,
)
from t2t.data.nvjpeg import gpu_decoder_name
from t2t.data.order import Batch, Order
from t2t.data.sources.base import Indices
from t2t.shapes import Pixels

_CHUNK = 64


class ResidentImages:
    """All images of a source as uint8 on a device, each at its own size.

    They are decoded as a stream would, so that keeping them changes no pixel.
    """

    def __init__(
        self,
        loader: Loader,
        device: torch.device,
        *,
        num_workers: int | None = None,
        gpu_share: float | None = None,
    ) -> None:
        self.device = device
        self.labels = loader.source.labels
        self._loader = loader
        share = default_gpu_share() if gpu_share is None else gpu_share
        self._gpu_share = share if gpu_decoder_name(device) else 0.0
        starts = range(0, len(loader.source), _CHUNK)
        pool = ThreadPoolExecutor(num_workers or num_cores(), "t2t-decode")
        try:
            if self._gpu_share:
                parts = [self._decoded_on_gpu(start, pool) for start in starts]
            else:
                parts = list(pool.map(self._decoded, starts))
        finally:
            pool.shutdown(cancel_futures=True)
        self.loaded: Indices = np.array([i for part in parts for i in part.indices])
        """Which image stands at each index: another one where it was damaged."""
        self.ragged = ragged_of(parts, loader.channels)
        if device.type == "cuda":
            # A decoder on a stream of its own may get the parts' memory next.
            torch.cuda.synchronize(device)

    def _indices(self, start: int) -> Indices:
        return np.arange(start, min(start + _CHUNK, len(self.labels)))

    def _decoded(self, start: int) -> Part:
        found = [self._loader.load(index) for index in self._indices(start).tolist()]
        return part_of(*_apart(found), self.device)

    def _decoded_on_gpu(self, start: int, pool: ThreadPoolExecutor) -> Part:
        indices = self._indices(start)
        chosen = decoded_on_gpu(indices, self._gpu_share)
        there, here = indices[chosen].tolist(), indices[~chosen].tolist()
        decoding = pool.map(self._loader.load, here)
        datas = list(pool.map(self._loader.source.read, there))
        by_gpu = self._loader.load_on_gpu(there, datas, self.device, pool)
        found = dict(zip(there, zip(*by_gpu, strict=True), strict=True))
        for index, (loaded, pixels) in zip(here, decoding, strict=True):
            found[index] = loaded, pixels.to(self.device)
        in_order = [found[index] for index in indices.tolist()]
        return part_of(*_apart(in_order), self.device)


def _apart(
    found: list[tuple[int, ImagePixels]],
) -> tuple[list[int], list[ImagePixels]]:
    return [index for index, _ in found], [pixels for _, pixels in found]


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
