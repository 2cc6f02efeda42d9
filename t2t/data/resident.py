"""Small sets: decoded once and kept on the device, where batches are gathered."""

import math
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from weakref import WeakKeyDictionary

import numpy as np
import torch

from t2t.data.crops import Crop, check_one_size
from t2t.data.decoding.damage import DamagedImage
from t2t.data.decoding.headers import image_format
from t2t.data.loader import Loader, make_batch
from t2t.data.sampler import Batch, BatchIndices, Sampler
from t2t.data.sources.base import Indices, Source
from t2t.data.streaming.stream import Decoded, ImageStream
from t2t.ops.ragged import Ragged, empty_rounded_up

# Images that the stream decodes in a step: more if they are small.
_MIN_CHUNK, _MAX_CHUNK = 64, 2048
_CHUNK_BYTES = 1 << 24


class TooLargeToKeep(Exception):  # noqa: N818 (it says what a source is)
    """Decoded images that need more memory than allowed."""

    def __init__(self, max_bytes: float) -> None:
        super().__init__(max_bytes)
        self.max_bytes = max_bytes


class _InOrder:
    """A sampler of all images once."""

    seed = 0

    def __init__(self, num_images: int, chunk: int) -> None:
        self.num_images = num_images
        self.chunk = chunk
        self.num_steps = -(-num_images // chunk)

    def batch_indices(self, step: int) -> BatchIndices:
        first = step * self.chunk
        indices = np.arange(first, min(first + self.chunk, self.num_images))
        return BatchIndices(indices, indices, np.ones(len(indices), dtype=bool))


class ResidentImages:
    """All images of a source as uint8 on a device, each at its own size.

    They are decoded by the stream that would else feed the device, so that keeping
    them changes no pixel. Past `max_bytes` it stops with TooLargeToKeep.
    """

    def __init__(
        self,
        loader: Loader,
        device: torch.device,
        *,
        num_workers: int | None = None,
        nvjpeg: bool = True,
        ahead: bool = False,
    ) -> None:
        self.labels = loader.source.labels
        self.device = device
        chunk = _CHUNK_BYTES // loader.load(0)[1].numel()
        chunk = min(max(chunk, _MIN_CHUNK), _MAX_CHUNK)
        self._sampler = _InOrder(len(self.labels), chunk)
        self._stream = ImageStream(
            loader,
            self._sampler,
            device=device,
            num_workers=num_workers,
            nvjpeg=nvjpeg and starts_with_jpeg(loader.source),
            processes=None if ahead else False,
            threads_first=not ahead,
            in_order=True,
        )
        self.is_loaded = False
        self._loading: Future[None] | None = None
        if ahead:
            self._stream.start_workers()

    @property
    def is_loading(self) -> bool:
        """Whether `load` would wait for what was started."""
        return self._loading is not None

    def start_loading(self, max_bytes: float) -> None:
        """Starts to decode all images beside other work; `load` waits for the end."""
        if self.is_loaded or self.is_loading:
            return
        # A program that ends meanwhile does not wait: no step can be submitted then.
        thread = ThreadPoolExecutor(1, "t2t-load")
        self._loading = thread.submit(self._decode_all, max_bytes)
        thread.shutdown(wait=False)

    def load(self, max_bytes: float = math.inf) -> None:
        """Decodes all images, unless that is done."""
        loading, self._loading = self._loading, None
        if loading is not None:
            loading.result()
        if not self.is_loaded:
            self._decode_all(max_bytes)

    def _decode_all(self, max_bytes: float) -> None:
        stream, num_steps = self._stream, self._sampler.num_steps
        parts: list[Decoded] = []
        num_bytes = 0
        with closing(stream.steps(0, num_steps, lambda _, part: part)) as steps:
            for part in steps:
                parts.append(part)
                num_bytes += part.images.pixels.numel()
                if num_bytes > max_bytes:
                    raise TooLargeToKeep(max_bytes)
        self.loaded: Indices = np.concatenate([part.loaded for part in parts])
        """The index of the image at each position; another if it was damaged."""
        images = [part.images for part in parts]
        parts.clear()
        self.images = _joined(images)
        if self.device.type == "cuda":
            # A decoder on another stream may get the parts' memory next.
            torch.cuda.synchronize(self.device)
        self.is_loaded = True
        del self._stream  # its workers end


def starts_with_jpeg(source: Source) -> bool:
    """Whether the first image is a JPEG: others are decoded without a GPU's decoder."""
    try:
        data = source.read(0)
    except DamagedImage:
        return True
    return isinstance(data, bytes) and image_format(data) == "jpeg"


def _joined(parts: list[Ragged]) -> Ragged:
    """The images of all parts in one buffer, in any order within a part.

    Each part is freed once it is copied, so that a CPU holds the pixels once.
    """
    sizes = [len(part.pixels) for part in parts]
    starts = (np.cumsum(sizes) - sizes).tolist()
    offsets = [part.offsets + start for part, start in zip(parts, starts, strict=True)]
    pixels = empty_rounded_up(sum(sizes), parts[0].pixels.device)
    channels = parts[0].channels
    heights = torch.cat([part.heights for part in parts])
    widths = torch.cat([part.widths for part in parts])
    interleaved = torch.cat([part.interleaved for part in parts])
    for start, size in zip(starts, sizes, strict=True):
        pixels[start : start + size] = parts.pop(0).pixels
    return Ragged(pixels, torch.cat(offsets), heights, widths, interleaved, channels)


# The decoded images of sources that are still in use.
_CACHE: WeakKeyDictionary[Source, dict[object, ResidentImages]] = WeakKeyDictionary()


def is_resident(loader: Loader, device: torch.device, nvjpeg: bool) -> bool:
    """Whether the images are on the device, or about to be."""
    kept = _CACHE.get(loader.source, {}).get((device, loader.decoding, nvjpeg))
    return kept is not None and (kept.is_loaded or kept.is_loading)


def resident_images(
    loader: Loader,
    device: torch.device,
    num_workers: int | None,
    nvjpeg: bool,
    ahead: bool = False,
) -> ResidentImages:
    """All images of a source, decoded once however often the source is opened.

    They still have to be loaded. `ahead` starts processes for that, if they can read
    the source.
    """
    cached = _CACHE.setdefault(loader.source, {})
    key = (device, loader.decoding, nvjpeg)
    if key not in cached:
        cached[key] = ResidentImages(
            loader, device, num_workers=num_workers, nvjpeg=nvjpeg, ahead=ahead
        )
    return cached[key]


class ResidentBatches:
    """Batches gathered on the device without waiting for it."""

    def __init__(
        self,
        resident: ResidentImages,
        sampler: Sampler,
        crops: tuple[Crop, ...] = (),
        *,
        description: str = "",
    ) -> None:
        self.resident = resident
        self.sampler = sampler
        self.crops = crops
        self.description = description
        if not crops:
            check_one_size(resident.images)

    def steps(self, start: int, stop: int) -> Generator[Batch]:
        """The batches of these steps, in order."""
        for step in range(start, stop):
            wanted = self.sampler.batch_indices(step)
            yield make_batch(
                self.resident.images.select(torch.from_numpy(wanted.indices)),
                self.resident.loaded[wanted.indices],
                wanted,
                self.resident.labels,
                self.crops,
                seed=self.sampler.seed,
                step=step,
            )
