"""Small sets: decoded once, kept on the device, batches taken there by index."""

import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from weakref import WeakKeyDictionary

import numpy as np
import torch

from t2t.data.crops import Crop, as_batch, crop_views
from t2t.data.decoding.damage import DamagedImage
from t2t.data.decoding.decode import ImagePixels
from t2t.data.decoding.headers import image_format, jpeg_header
from t2t.data.decoding.nvjpeg import gpu_decoder_name
from t2t.data.decoding.shrinking import shrunk_size
from t2t.data.loading import (
    Loader,
    batch_of,
    sent,
)
from t2t.data.resources import num_cores
from t2t.data.rng import CounterRng
from t2t.data.sampler import Batch, Sampler
from t2t.data.sources.base import Indices, Source
from t2t.ops.ragged import Ragged
from t2t.shapes import Pixels

Found = tuple[int, ImagePixels | bytes]

# Images that a thread decodes at once, and that wait at most to be sent.
_CHUNK = 64
_WINDOW = 64 * _CHUNK


class TooLargeToKeep(Exception):  # noqa: N818 (it says what a source is)
    """Images that decoded need more memory than they may have."""


class ResidentImages:
    """All images of a source as uint8 on a device, each at its own size.

    They are decoded as a stream would, so that keeping them changes no pixel. Past
    `most_bytes` decoding stops with TooLargeToKeep.
    """

    def __init__(
        self,
        loader: Loader,
        device: torch.device,
        *,
        num_workers: int | None = None,
        nvjpeg: bool = True,
        most_bytes: float = math.inf,
    ) -> None:
        self.device = device
        self._bytes_left = most_bytes
        self._lock = threading.Lock()
        self.labels = loader.source.labels
        self._loader = loader
        self._by_gpu = nvjpeg and gpu_decoder_name(device) is not None
        loaded: list[int] = []
        parts: list[Ragged] = []
        pool = ThreadPoolExecutor(num_workers or num_cores(), "t2t-decode")
        try:
            for first in range(0, len(self.labels), _WINDOW):
                starts = range(first, min(first + _WINDOW, len(self.labels)), _CHUNK)
                # Threads only decode: what they sent would be ordered with nothing.
                for found in pool.map(self._decoded, starts):
                    indices, images = self._whole(found, pool)
                    loaded += indices
                    parts.append(sent(images, device))
        finally:
            pool.shutdown(cancel_futures=True)
        self.loaded: Indices = np.array(loaded)
        """Which image stands at each index: another one where it was damaged."""
        self.ragged = Ragged.joined(parts)
        del self._lock, self._loader  # and with it the source, which may be done with
        if device.type == "cuda":
            # A decoder on a stream of its own may get the parts' memory next.
            torch.cuda.synchronize(device)

    def _decoded(self, start: int) -> list[Found]:
        """Images decoded by this thread, but for the JPEGs that nvJPEG is to decode."""
        load = self._jpeg_or_pixels if self._by_gpu else self._loader.load
        found: list[Found] = []
        for index in range(start, min(start + _CHUNK, len(self.labels))):
            found.append(load(index))
            self._count(found[-1][1])
        return found

    def _count(self, data: ImagePixels | bytes) -> None:
        """Stops all once there are more pixels than may be, a JPEG's by its header."""
        if isinstance(data, torch.Tensor):
            num_bytes = data.numel()
        else:
            header = jpeg_header(data)
            min_side = self._loader.decoding.min_side
            size = shrunk_size(*header[:2], min_side) if header else (0, 0)
            num_bytes = self._loader.channels * size[0] * size[1]
        with self._lock:
            self._bytes_left -= num_bytes
            if self._bytes_left < 0:
                raise TooLargeToKeep

    def _jpeg_or_pixels(self, index: int) -> Found:
        """The bytes of a JPEG; all else decoded."""
        try:
            data = self._loader.source.read(index)
        except DamagedImage as damaged:
            return self._loader.load_instead(index, damaged.reason)
        if isinstance(data, bytes) and image_format(data) == "jpeg":
            return index, data
        return self._loader.load_read(index, data)

    def _whole(
        self, found: list[Found], pool: ThreadPoolExecutor
    ) -> tuple[list[int], list[ImagePixels]]:
        """Indices and pixels, after nvJPEG has done its own."""
        jpegs = [(index, data) for index, data in found if isinstance(data, bytes)]
        if jpegs:
            indices, datas = zip(*jpegs, strict=True)
            loaded = self._loader.load_on_gpu(indices, datas, self.device, pool)
            by_gpu = iter(zip(*loaded, strict=True))
            found = [
                next(by_gpu) if isinstance(data, bytes) else (index, data)
                for index, data in found
            ]
        images = [data for _, data in found if isinstance(data, torch.Tensor)]
        if jpegs:
            images = [image.to(self.device) for image in images]
        return [index for index, _ in found], images


# The decoded images of sources that are still in use.
_KEPT: WeakKeyDictionary[Source, dict[object, ResidentImages]] = WeakKeyDictionary()


def kept_images(
    loader: Loader,
    device: torch.device,
    num_workers: int | None,
    nvjpeg: bool,
    most_bytes: float = math.inf,
) -> ResidentImages:
    """All images of a source, decoded once however often the source is opened."""
    kept = _KEPT.setdefault(loader.source, {})
    key = (device, loader.decoding, nvjpeg)
    if key not in kept:
        kept[key] = ResidentImages(
            loader,
            device,
            num_workers=num_workers,
            nvjpeg=nvjpeg,
            most_bytes=most_bytes,
        )
    return kept[key]


class ResidentBatches:
    """Batches gathered on the device without the host waiting for it."""

    def __init__(
        self,
        images: ResidentImages,
        order: Sampler,
        crops: tuple[Crop, ...] = (),
        *,
        description: str = "",
    ) -> None:
        self.images = images
        self.order = order
        self.crops = crops
        self.description = description
        if not crops:
            self._pixels: Pixels = as_batch(images.ragged)

    def steps(self, start: int, stop: int) -> Iterator[Batch]:
        """The batches of these steps, in order."""
        for step in range(start, stop):
            yield self._batch(step)

    def _batch(self, step: int) -> Batch:
        slots = self.order.slots(step)
        device = self.images.device
        loaded = self.images.loaded[slots.indices]
        views: tuple[Pixels, ...]
        if not self.crops:
            place = torch.from_numpy(slots.indices)
            if device.type == "cuda":
                place = place.pin_memory().to(device, non_blocking=True)
            views = (self._pixels.index_select(0, place.to(device)),)
        else:
            ragged = self.images.ragged.select(torch.from_numpy(slots.indices))
            rng = CounterRng.of(self.order.seed, step, torch.from_numpy(slots.keys))
            views = crop_views(self.crops, ragged, rng)
        return batch_of(views, loaded, slots, self.images.labels, device)
