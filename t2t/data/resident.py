"""Small sets: decoded once and kept on the device, where batches are gathered."""

import math
from collections.abc import Callable, Generator
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
from t2t.data.shared_images import (
    Peers,
    SharedImages,
    TooLargeToKeep,
    raise_together,
    share_memory,
)
from t2t.data.sources.base import Indices, Source
from t2t.data.streaming.stream import Decoded, ImageStream
from t2t.ops.ragged import Ragged, empty_rounded_up

# Images that the processes of a machine decode in a step: more if they are small.
_MIN_CHUNK, _MAX_CHUNK = 64, 2048
_CHUNK_BYTES = 1 << 24


class DecodingProgress:
    """How many images of a set are decoded, for the screen; empty if none are."""

    def __init__(self) -> None:
        self.num_decoded: Callable[[], int] = lambda: 0

    def __call__(self) -> str:
        number = self.num_decoded()
        return f"({number:,} decoded)" if number else ""


class _InOrder:
    """A sampler of a range of images once."""

    seed = 0

    def __init__(self, images: range, chunk: int) -> None:
        self.images = images
        self.chunk = chunk
        self.num_steps = -(-len(images) // chunk)

    def positions(self, step: int) -> range:
        return self.images[step * self.chunk : (step + 1) * self.chunk]

    def batch_indices(self, step: int) -> BatchIndices:
        indices = np.array(self.positions(step))
        return BatchIndices(indices, indices, np.ones(len(indices), dtype=bool))


class ResidentImages:
    """All images of a source as uint8 on a device, each at its own size.

    They are decoded by the stream that would else feed the device, so that keeping
    them changes no pixel. The processes of a machine decode a share each. Past
    `max_bytes` it stops with TooLargeToKeep.
    """

    def __init__(
        self,
        loader: Loader,
        device: torch.device,
        *,
        num_workers: int | None = None,
        nvjpeg: bool = True,
        ahead: bool = False,
        peers: Peers | None = None,
    ) -> None:
        self.labels = loader.source.labels
        self.device = device
        self.num_decoded = 0
        self._channels, self._damage, self._peers = (
            loader.channels,
            loader.damage,
            peers,
        )
        num_together = 1 if peers is None else peers.local_size
        chunk = _CHUNK_BYTES // num_together // loader.load(0)[1].numel()
        chunk = min(max(chunk, _MIN_CHUNK // num_together, 1), _MAX_CHUNK)
        self._stream = ImageStream(
            loader,
            _InOrder(range(len(self.labels)), chunk),
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

    def load(
        self, max_bytes: float = math.inf, progress: DecodingProgress | None = None
    ) -> None:
        """Decodes all images, unless that is done."""
        if progress is not None:
            progress.num_decoded = lambda: self.num_decoded
        if self._loading is not None:
            try:
                self._loading.result()
            finally:
                self._loading = None
        if self.is_loaded:
            return
        if self._peers is None:
            self._decode_all(max_bytes)
        else:
            self._decode_together(self._peers, max_bytes, progress)

    def _decode_all(self, max_bytes: float, limit: str | None = None) -> None:
        parts: list[Decoded] = []
        num_bytes = 0
        with closing(self._decoded()) as decoded:
            for _, part in decoded:
                parts.append(part)
                num_bytes += part.images.pixels.numel()
                if num_bytes > max_bytes:
                    raise TooLargeToKeep(max_bytes, limit)
        loaded = np.concatenate([part.loaded for part in parts])
        images = [part.images for part in parts]
        parts.clear()
        self._keep(_joined(images), loaded)

    def _decode_together(
        self, peers: Peers, max_bytes: float, progress: DecodingProgress | None
    ) -> None:
        """Decodes a share of the images, and gets the others from this machine."""
        shared = share_memory(peers, len(self.labels))
        error: Exception | None = None
        try:
            if shared is None:
                # Each process of a CPU needs memory of its own then.
                if self.device.type == "cpu" and peers.local_size > 1:
                    share = "one process's share of a quarter of free memory"
                    self._decode_all(max_bytes / peers.local_size, share)
                else:
                    self._decode_all(max_bytes)
            else:
                if progress is not None:
                    progress.num_decoded = lambda: shared.num_decoded
                self._decode_share(peers, shared, max_bytes)
        except Exception as failure:
            error = failure
            if shared is not None:
                shared.stop()
        raise_together(peers, error)
        for reasons in peers.gather(self._damage.reasons):
            for name, reason in reasons:
                self._damage.record(DamagedImage(name, reason))
        if shared is not None:
            self._keep(*shared.images(self._channels, self.device))

    def _decode_share(
        self, peers: Peers, shared: SharedImages, max_bytes: float
    ) -> None:
        sampler = self._stream.sampler
        assert isinstance(sampler, _InOrder)
        share = peers.share_of(len(self.labels))
        self._stream.sampler = _InOrder(share, sampler.chunk)
        with closing(self._decoded()) as decoded:
            for positions, part in decoded:
                shared.append(
                    peers.local_rank, positions, part.images, part.loaded, max_bytes
                )

    def _decoded(self) -> Generator[tuple[range, Decoded]]:
        """The images of the stream's sampler, and their positions in the source."""
        sampler = self._stream.sampler
        assert isinstance(sampler, _InOrder)
        steps = self._stream.steps(0, sampler.num_steps, lambda _, part: part)
        with closing(steps):
            for step, part in enumerate(steps):
                positions = sampler.positions(step)
                self.num_decoded += len(positions)
                yield positions, part

    def _keep(self, images: Ragged, loaded: Indices) -> None:
        self.images = images
        self.loaded = loaded
        """The index of the image at each position; another if it was damaged."""
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
    peers: Peers | None = None,
) -> ResidentImages:
    """All images of a source, decoded once however often the source is opened.

    They still have to be loaded. `ahead` starts processes for that, if they can read
    the source. Processes of one machine decode them together if they are `peers`.
    """
    cached = _CACHE.setdefault(loader.source, {})
    key = (device, loader.decoding, nvjpeg)
    if key not in cached:
        cached[key] = ResidentImages(
            loader,
            device,
            num_workers=num_workers,
            nvjpeg=nvjpeg,
            ahead=ahead,
            peers=peers,
        )
    return cached[key]


def forget(loader: Loader, device: torch.device, nvjpeg: bool) -> None:
    """Forgets images that turned out too large to keep; their workers end."""
    _CACHE.get(loader.source, {}).pop((device, loader.decoding, nvjpeg), None)


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
