"""Loads images of a source by index, replaces damaged ones, and makes batches."""

import threading

import numpy as np
import torch

from t2t.data.crops import Crop, make_views
from t2t.data.decoding.damage import Damage, DamagedImage
from t2t.data.decoding.decode import DecodeOptions, ImagePixels, decode
from t2t.data.decoding.headers import DEFAULT_MAX_PIXELS
from t2t.data.sampler import Batch, BatchIndices
from t2t.data.sources.base import Indices, Source
from t2t.errors import LocalError, UserError
from t2t.ops.ragged import Ragged


class Loader:
    """Decoded images by index; any thread may call it.

    A damaged image is recorded and replaced by the next readable one of the source,
    which starts again after its end, with its own label. Nothing else decides which
    one that is: all ranks agree, and a resumed run sees the same.
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
        self._replacements: dict[int, int] = {}
        self._lock = threading.Lock()

    @property
    def channels(self) -> int:
        return self.decoding.channels

    def replace_damaged(self, indices: Indices) -> Indices:
        """The indices, with the replacements of images known to be damaged."""
        if not self._replacements:
            return indices
        return np.array([self._replacements.get(int(i), int(i)) for i in indices])

    def load(self, index: int) -> tuple[int, ImagePixels]:
        """The image or its replacement: its index and its pixels."""
        try:
            return index, self._decode(index)
        except DamagedImage as damaged:
            return self.load_replacement(index, damaged.reason)

    def load_replacement(self, index: int, reason: str) -> tuple[int, ImagePixels]:
        """Records an image as damaged and loads its replacement."""
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
                self._replacements[index] = candidate
            return candidate, pixels
        raise LocalError(f"None of the {num_images} images can be read: {reason}.")

    def _decode(self, index: int) -> ImagePixels:
        data = self.source.read(index)
        try:
            return decode(data, **self.decoding._asdict())
        except DamagedImage as damaged:
            # Named only now: naming every image would cost more than reading it.
            raise DamagedImage(self.source.name(index), damaged.reason) from damaged


def make_batch(
    images: Ragged,
    loaded: Indices,
    wanted: BatchIndices,
    labels: Indices,
    crops: tuple[Crop, ...],
    *,
    seed: int,
    step: int,
) -> Batch:
    """The batch of these images, on their device, without waiting for it.

    `loaded` says which image of the source each one is, `labels` are the source's.
    """
    views = make_views(images, crops, seed, step, torch.from_numpy(wanted.keys))
    valid = wanted.valid & (loaded == wanted.indices)
    rows = torch.from_numpy(np.stack([labels[loaded], loaded, wanted.keys, valid]))
    device = images.pixels.device
    if device.type == "cuda":
        rows = rows.pin_memory()
    rows = rows.to(device, non_blocking=True)
    return Batch(views, rows[0], rows[1], rows[2], rows[3].bool())
