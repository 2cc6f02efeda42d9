"""From a source to batches on the device: kept there, or streamed to it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from t2t.data.crops import Crop, min_side_for
from t2t.data.decoding.damage import Damage
from t2t.data.decoding.headers import DEFAULT_MAX_PIXELS, MAX_PIXELS_LIMIT
from t2t.data.loading import Loader
from t2t.data.resident import ResidentBatches, TooLargeToKeep, resident_images
from t2t.data.resources import free_memory
from t2t.data.sampler import (
    Batch,
    BlockShuffle,
    EvaluationSampler,
    Sampler,
    TrainingSampler,
    shuffled,
)
from t2t.data.sources.base import Source
from t2t.data.streaming.stream import ImageStream, StreamBatches
from t2t.errors import require

# Of the memory that is free: the rest is for the model and what it computes.
RESIDENT_SHARE = 0.25
_NUM_PROBED = 32


class Batches(Protocol):
    """Batches of any steps: the same for the same (seed, step)."""

    @property
    def description(self) -> str:
        """How images reach the device, in words."""
        ...

    def steps(self, start: int, stop: int) -> Iterator[Batch]: ...


@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """How the machine feeds the device; nothing a result depends on but `nvjpeg`."""

    resident: bool | None = None
    """Keep decoded images on the device; None decides by what is free."""
    num_workers: int | None = None
    """Who read and decode; None takes as many as there are cores for this process."""
    num_ahead: int = 3
    """Steps prepared ahead."""
    nvjpeg: bool = True
    """Has nvJPEG decode JPEGs where it can; it differs by a few grey levels."""
    processes: bool | None = None
    """Whether workers are processes; None decides by the device and the source."""
    threads_first: bool = True
    """Where that is decided: whether threads do the work while processes start."""
    max_pixels: int = DEFAULT_MAX_PIXELS
    """Larger images are skipped as damaged."""

    def __post_init__(self) -> None:
        for name in ("num_workers", "num_ahead"):
            if getattr(self, name) is not None:
                require(name, getattr(self, name), 1)
        require("max_pixels", self.max_pixels, 1, MAX_PIXELS_LIMIT)


def open_batches(
    source: Source,
    *,
    batch_size: int,
    crops: tuple[Crop, ...],
    device: torch.device | str,
    seed: int = 0,
    rank: int = 0,
    world_size: int = 1,
    repeats: int = 1,
    channels: int = 3,
    damage: Damage | None = None,
    loader_options: LoaderOptions | None = None,
) -> Batches:
    """Training batches without end; `batch_size` counts the samples of all ranks.

    A batch has a view of its images per crop, in that order. Without crops it has one:
    the images as they are, which must share one size. A damaged image is recorded and
    the next one in the source stands in for it.
    """
    order = TrainingSampler(
        num_images=len(source),
        batch_size=batch_size,
        seed=seed,
        rank=rank,
        world_size=world_size,
        repeats=repeats,
        shuffle=shuffled if source.blocks is None else BlockShuffle(source),
    )
    order.batch_indices(0)  # refuses an impossible batch size before anything is read
    loader_options = loader_options or LoaderOptions()
    loader = _loader(source, channels, damage, crops, loader_options)
    return _choose(loader, order, crops, torch.device(device), loader_options)


@dataclass(frozen=True)
class EvaluationBatches:
    """One rank's share of a whole source: `valid` marks what counts."""

    batches: Batches
    num_steps: int

    def __len__(self) -> int:
        return self.num_steps

    def __iter__(self) -> Iterator[Batch]:
        return self.batches.steps(0, self.num_steps)


def evaluation_batches(
    source: Source,
    *,
    batch_size: int,
    crop: Crop | None,
    device: torch.device | str,
    rank: int = 0,
    world_size: int = 1,
    channels: int = 3,
    damage: Damage | None = None,
    loader_options: LoaderOptions | None = None,
) -> EvaluationBatches:
    """Every image once over all ranks, which take equally many full batches.

    `valid` is false where the last batches are filled up and where an image is
    damaged. `batch_size` counts the samples of all ranks.
    """
    order = EvaluationSampler(
        num_images=len(source), batch_size=batch_size, rank=rank, world_size=world_size
    )
    loader_options = loader_options or LoaderOptions()
    crops = () if crop is None else (crop,)
    loader = _loader(source, channels, damage, crops, loader_options)
    batches = _choose(loader, order, crops, torch.device(device), loader_options)
    return EvaluationBatches(batches, order.num_steps)


def _loader(
    source: Source,
    channels: int,
    damage: Damage | None,
    crops: tuple[Crop, ...],
    loader_options: LoaderOptions,
) -> Loader:
    """A loader that decodes images no larger than the crops need."""
    return Loader(
        source,
        channels=channels,
        damage=damage,
        min_side=min_side_for(*crops),
        max_pixels=loader_options.max_pixels,
    )


def _choose(
    loader: Loader,
    order: Sampler,
    crops: tuple[Crop, ...],
    device: torch.device,
    loader_options: LoaderOptions,
) -> Batches:
    """Resident where a quarter of the free memory holds all images, else streamed."""
    device = torch.empty(0, device=device).device  # "cuda" becomes "cuda:0"
    resident, reason, most = loader_options.resident, "as asked", math.inf
    if resident is None:
        most = RESIDENT_SHARE * free_bytes(device)
        needed = decoded_bytes(loader)
        resident = needed <= most
        reason = f"about {in_words(needed)}, a quarter of what is free is less"
    num_images = f"{len(loader.source):,} images"
    if resident:
        workers = loader_options.num_workers
        try:
            resident_set = resident_images(
                loader, device, workers, loader_options.nvjpeg, most
            )
        except TooLargeToKeep:
            reason = f"some are so large that {in_words(int(most))} cannot hold all"
        else:
            size = in_words(resident_set.images.pixels.numel())
            words = f"{num_images} decoded once and kept on {device}: {size}"
            return ResidentBatches(resident_set, order, crops, description=words)
    stream = ImageStream(
        loader,
        order,
        device=device,
        num_workers=loader_options.num_workers,
        num_ahead=loader_options.num_ahead,
        nvjpeg=loader_options.nvjpeg,
        processes=loader_options.processes,
        threads_first=loader_options.threads_first,
    )
    batches = StreamBatches(stream, crops)
    batches.description = (
        f"{num_images} streamed to {device}, {batches.description}: {reason}"
    )
    return batches


def decoded_bytes(loader: Loader) -> int:
    """All images as uint8, judged by some that are spread over the source."""
    num_images = len(loader.source)
    num_probed = min(_NUM_PROBED, num_images)
    probed = np.linspace(0, num_images - 1, num_probed).astype(int).tolist()
    total = sum(loader.load(index)[1].numel() for index in probed)
    return total * num_images // num_probed


def in_words(num_bytes: int) -> str:
    """Bytes as people say them."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.3g} {unit}"
    return f"{num_bytes} bytes"


def free_bytes(device: torch.device) -> int:
    """Memory that could be taken on the device now."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return free_memory()
