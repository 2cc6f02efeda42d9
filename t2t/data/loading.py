"""Reading and decoding images of a source, with others in place of damaged ones."""

import os
import threading
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from t2t.data.damage import Damage, DamagedImage
from t2t.data.decode import decode
from t2t.data.order import Batch, Slots
from t2t.data.sources.base import Indices, Source
from t2t.errors import UserError
from t2t.shapes import Pixels

ImagePixels = UInt8[Tensor, "channels height width"]


def num_cores() -> int:
    """Cores this process may use, its share where several run on one machine."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")), 1)


class Loader:
    """Decoded images by index, safe to use from many threads.

    A damaged image is recorded and the next whole one in the source's order, after
    the last the first, stands in for it with its own label. Which one that is depends
    on nothing else, so that all ranks stay in step and a resumed run sees the same.
    """

    def __init__(
        self, source: Source, *, channels: int = 3, damage: Damage | None = None
    ) -> None:
        if not len(source):
            raise UserError("The source holds no images.")
        self.source = source
        self.channels = channels
        self.damage = damage if damage is not None else Damage()
        self._stand_ins: dict[int, int] = {}
        self._lock = threading.Lock()

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
        raise UserError(f"None of the {num_images} images can be read: {reason}.")

    def _decode(self, index: int) -> ImagePixels:
        data = self.source.read(index)
        try:
            return decode(data, channels=self.channels)
        except DamagedImage as damaged:
            # Named here, since to name every image would cost more than reading it.
            raise DamagedImage(self.source.name(index), damaged.reason) from damaged


def joined(
    images: Sequence[ImagePixels], device: torch.device
) -> UInt8[Tensor, " pixels"]:
    """Images end to end on the device, sent from page-locked memory to a GPU."""
    total = sum(image.numel() for image in images)
    on_gpu = device.type == "cuda"
    flat = torch.empty(total, dtype=torch.uint8, pin_memory=on_gpu)
    # NumPy copies in this thread: torch would start a team of threads in each one.
    target = flat.numpy()
    start = 0
    for image in images:
        stop = start + image.numel()
        target[start:stop] = image.contiguous().numpy().reshape(-1)
        start = stop
    return flat.to(device, non_blocking=on_gpu)


def batch_of(
    images: Pixels, loaded: Indices, slots: Slots, labels: Indices, device: torch.device
) -> Batch:
    """A batch whose numbers travel to the device together, without waiting."""
    valid = slots.valid & (loaded == slots.indices)
    rows = torch.from_numpy(np.stack([labels[loaded], loaded, slots.keys, valid]))
    if device.type == "cuda":
        rows = rows.pin_memory()
    rows = rows.to(device, non_blocking=True)
    return Batch(images, rows[0], rows[1], rows[2], rows[3].bool())


def sizes_of(images: Iterable[ImagePixels]) -> tuple[Tensor, Tensor]:
    """Heights and widths as the tables of a `Ragged` hold them."""
    sizes = torch.tensor([image.shape[1:] for image in images])
    return sizes[:, 0], sizes[:, 1]
