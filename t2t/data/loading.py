"""Reading and decoding images of a source, with others in place of damaged ones."""

import threading
from collections.abc import Sequence
from concurrent.futures import Executor

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from t2t.data.decoding.damage import Damage, DamagedImage
from t2t.data.decoding.decode import DecodeOptions, ImagePixels, decode, decode_each
from t2t.data.decoding.headers import DEFAULT_MAX_PIXELS
from t2t.data.sampler import Batch, BatchIndices
from t2t.data.sources.base import Indices, Source
from t2t.errors import LocalError, UserError
from t2t.ops.ragged import Ragged
from t2t.shapes import Pixels


class Loader:
    """Decoded images by index, safe to use from many threads.

    A damaged image is recorded and the next whole one in the source's order, after
    the last the first, stands in for it with its own label. Which one that is depends
    on nothing else, so that all ranks stay in step and a resumed run sees the same.
    """

    def __init__(
        self,
        source: Source,
        *,
        channels: int = 3,
        damage: Damage | None = None,
        min_side: int | None = None,
        max_pixels: int = DEFAULT_MAX_PIXELS,
    ) -> None:
        if not len(source):
            raise UserError("The source holds no images.")
        self.source = source
        self.decoding = DecodeOptions(channels, min_side, max_pixels)
        self.damage = damage if damage is not None else Damage()
        self._stand_ins: dict[int, int] = {}
        self._lock = threading.Lock()

    @property
    def channels(self) -> int:
        return self.decoding.channels

    def stand_ins(self, indices: Indices) -> Indices:
        """The same indices, those known to be damaged replaced."""
        if not self._stand_ins:
            return indices
        return np.array([self._stand_ins.get(int(i), int(i)) for i in indices])

    def load(self, index: int) -> tuple[int, ImagePixels]:
        """The image, or the one that stands in for it, and which one it is."""
        try:
            return index, self._decode(index)
        except DamagedImage as damaged:
            return self.load_instead(index, damaged.reason)

    def load_read(self, index: int, data: bytes | Tensor) -> tuple[int, ImagePixels]:
        """The same of an image that has been read."""
        try:
            return index, decode(data, **self.decoding._asdict())
        except DamagedImage as damaged:
            return self.load_instead(index, damaged.reason)

    def load_instead(self, index: int, reason: str) -> tuple[int, ImagePixels]:
        """Record an image as damaged; load the one that stands in for it."""
        num_images = len(self.source)
        self.damage.record(DamagedImage(self.source.name(index), reason))
        for other in range(index + 1, index + num_images):
            candidate = other % num_images
            try:
                pixels = self._decode(candidate)
            except DamagedImage as damaged:
                self.damage.record(damaged)
                continue
            with self._lock:
                self._stand_ins[index] = candidate
            return candidate, pixels
        raise LocalError(f"None of the {num_images} images can be read: {reason}.")

    def load_on_gpu(
        self,
        indices: Sequence[int],
        datas: Sequence[bytes | Tensor],
        device: torch.device,
        pool: Executor,
    ) -> tuple[list[int], list[ImagePixels]]:
        """What was read, decoded by nvJPEG, or by the pool where that cannot."""
        outcomes = decode_each(
            datas, device=device, pool=pool, **self.decoding._asdict()
        )
        loaded = list(indices)
        images = []
        for place, outcome in enumerate(outcomes):
            if isinstance(outcome, Tensor):
                images.append(outcome)
                continue
            loaded[place], pixels = self.load_instead(loaded[place], outcome.reason)
            images.append(pixels.to(device))
        return loaded, images

    def _decode(self, index: int) -> ImagePixels:
        data = self.source.read(index)
        try:
            return decode(data, **self.decoding._asdict())
        except DamagedImage as damaged:
            # Named here, since to name every image would cost more than reading it.
            raise DamagedImage(self.source.name(index), damaged.reason) from damaged


def sent(images: Sequence[ImagePixels], device: torch.device) -> Ragged:
    """Images in one buffer on the device, or on their way there."""
    if images[0].is_cuda:
        return Ragged.from_images(images)
    on_gpu = device.type == "cuda"
    arrays = [image.numpy() for image in images]
    interleaved = [_is_interleaved(array) for array in arrays]
    total = sum(array.size for array in arrays)
    piece = torch.empty(total, dtype=torch.uint8, pin_memory=on_gpu)
    # NumPy copies in this thread, where torch would start a team of threads, and it
    # looks at shapes without letting go of the GIL, which many threads wait for.
    target = piece.numpy()
    start = 0
    for array, kind in zip(arrays, interleaved, strict=True):
        stored = array.transpose(1, 2, 0) if kind else array
        target[start : start + array.size] = stored.reshape(-1)
        start += array.size
    return Ragged.from_parts(
        piece.to(device, non_blocking=on_gpu),
        torch.tensor([array.shape[1] for array in arrays]),
        torch.tensor([array.shape[2] for array in arrays]),
        torch.tensor(interleaved),
        images[0].shape[0],
    )


def _is_interleaved(array: UInt8[np.ndarray, "channels height width"]) -> bool:
    flags = array.flags
    return not flags.c_contiguous and array.transpose(1, 2, 0).flags.c_contiguous


def batch_of(
    views: tuple[Pixels, ...],
    loaded: Indices,
    slots: BatchIndices,
    labels: Indices,
    device: torch.device,
) -> Batch:
    """A batch whose numbers travel to the device together, without waiting."""
    valid = slots.valid & (loaded == slots.indices)
    rows = torch.from_numpy(np.stack([labels[loaded], loaded, slots.keys, valid]))
    if device.type == "cuda":
        rows = rows.pin_memory()
    rows = rows.to(device, non_blocking=True)
    return Batch(views, rows[0], rows[1], rows[2], rows[3].bool())
