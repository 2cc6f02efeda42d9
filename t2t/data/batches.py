"""Batches of a source on a device: from images kept there, or streamed to it."""

import math
import warnings
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch

from t2t.data.class_balance import BalancedShuffle
from t2t.data.crops import Crop, min_side_for
from t2t.data.decoding.damage import Damage
from t2t.data.decoding.headers import DEFAULT_MAX_PIXELS, MAX_PIXELS_LIMIT
from t2t.data.loader import Loader
from t2t.data.resident import (
    DecodingProgress,
    ResidentBatches,
    forget,
    is_resident,
    resident_images,
)
from t2t.data.resources import free_memory
from t2t.data.sampler import (
    Batch,
    BlockShuffle,
    EvaluationSampler,
    ReadAhead,
    Sampler,
    Shuffle,
    ShuffleAhead,
    TrainingSampler,
    shuffled,
)
from t2t.data.shared_images import Peers, TooLargeToKeep
from t2t.data.sources.base import Source
from t2t.data.streaming.stream import ImageStream
from t2t.data.streaming.stream_batches import StreamBatches
from t2t.errors import require
from t2t.formatting import format_bytes
from t2t.torchrun import env_count

# Of the free memory; the rest is for the model and its activations.
RESIDENT_SHARE = 0.25
HOST_SHARE = 0.5
"""Share of the host's free memory for images on their way to several GPUs."""
_MEMORY_NAMES = {"cuda": "the GPU's free memory"}
_HOST_NAME = "half of the machine's free memory, through which images reach its GPUs"
_NUM_PROBED = 32
_AHEAD_FROM = 5_000
"""Images from which starting processes pays."""
_SHUFFLED_AHEAD_FROM = 100_000
"""Images from which shuffling takes noticeable time."""


class Batches(Protocol):
    """The batches of a run's steps, functions of (seed, step)."""

    @property
    def description(self) -> str:
        """How images reach the device, for the log."""
        ...

    def steps(self, start: int, stop: int) -> Generator[Batch]: ...


@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """How the machine feeds the device; only `nvjpeg` can change a result."""

    resident: bool | None = None
    """Keep decoded images on the device; None decides by the free memory."""
    num_workers: int | None = None
    """Threads or processes that read and decode; None: one per core of this process."""
    num_ahead: int = 3
    """Steps to prefetch."""
    nvjpeg: bool = True
    """Decode JPEGs on the GPU if it can; pixels differ by a few grey levels."""
    processes: bool | None = None
    """Use worker processes; None decides by the device and the source."""
    threads_first: bool = True
    """If `processes` is None: use threads while the processes start."""
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
    balance_power: float = 0.0,
    channels: int = 3,
    damage: Damage | None = None,
    loader_options: LoaderOptions | None = None,
    peers: Peers | None = None,
    progress: DecodingProgress | None = None,
) -> Batches:
    """Training batches without end; `batch_size` counts the samples of all ranks.

    A batch has a view of its images per crop, in that order. Without crops it has one:
    the images as they are, which must share one size. A damaged image is recorded and
    replaced by the next one of the source. `balance_power` above 0 shows images of
    small classes more often (`balance_factors`). Processes given as `peers` decode a
    set that is kept together, and all must call this.
    """
    sampler = TrainingSampler(
        num_images=len(source),
        batch_size=batch_size,
        seed=seed,
        rank=rank,
        world_size=world_size,
        repeats=repeats,
        shuffle=shuffle_of(source, -(-batch_size // repeats), balance_power),
    )
    sampler.batch_indices(0)  # refuses an impossible batch size before reading
    options = loader_options or LoaderOptions()
    loader = _loader(source, crops, channels, damage, options)
    return _open(loader, sampler, crops, device, options, peers, progress)


def shuffle_of(source: Source, num_distinct: int, balance_power: float) -> Shuffle:
    """How a source is shuffled for batches of `num_distinct` different images."""
    shuffle: Shuffle
    if balance_power:
        shuffle = BalancedShuffle(source, num_distinct, balance_power)
    elif source.blocks is not None:
        shuffle = BlockShuffle(source, num_distinct)
    else:
        shuffle = shuffled
    return ShuffleAhead(shuffle) if len(source) >= _SHUFFLED_AHEAD_FROM else shuffle


@dataclass(frozen=True)
class EvaluationBatches:
    """One rank's share of a whole source; only samples marked `valid` count."""

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
    peers: Peers | None = None,
    progress: DecodingProgress | None = None,
) -> EvaluationBatches:
    """Every image once over all ranks, which all get equally many full batches.

    `valid` is false for padding of the last batches and for damaged images.
    `batch_size` counts the samples of all ranks.
    """
    sampler = EvaluationSampler(
        num_images=len(source), batch_size=batch_size, rank=rank, world_size=world_size
    )
    crops = () if crop is None else (crop,)
    options = loader_options or LoaderOptions()
    loader = _loader(source, crops, channels, damage, options)
    batches = _open(loader, sampler, crops, device, options, peers, progress)
    return EvaluationBatches(batches, sampler.num_steps)


def _open(
    loader: Loader,
    sampler: TrainingSampler | EvaluationSampler,
    crops: tuple[Crop, ...],
    device: torch.device | str,
    options: LoaderOptions,
    peers: Peers | None,
    progress: DecodingProgress | None,
) -> Batches:
    """Resident if a quarter of the free memory holds all images, else streamed."""
    device = torch.empty(0, device=device).device  # "cuda" becomes "cuda:0"
    resident, reason, limit = _is_resident(loader, device, options, peers)
    num_images = f"{len(loader.source):,} images"
    if resident:
        workers, nvjpeg = options.num_workers, options.nvjpeg
        try:
            kept = resident_images(loader, device, workers, nvjpeg, peers=peers)
            kept.load(limit.max_bytes, progress)
        except TooLargeToKeep as error:
            forget(loader, device, nvjpeg)
            most = format_bytes(int(error.max_bytes))
            reason = f"more than {most}, {error.limit or limit.name}"
        else:
            size = format_bytes(kept.images.pixels.numel())
            description = f"{num_images} decoded once and kept on {device}: {size}"
            return ResidentBatches(kept, sampler, crops, description=description)
    stream = ImageStream(
        loader,
        _downloading_ahead(sampler, loader),
        device=device,
        num_workers=options.num_workers,
        num_ahead=options.num_ahead,
        nvjpeg=options.nvjpeg,
        processes=options.processes,
        threads_first=options.threads_first,
    )
    description = f"{num_images} streamed to {device}, {stream.description}: {reason}"
    return StreamBatches(stream, crops, description=description)


def _downloading_ahead(
    sampler: TrainingSampler | EvaluationSampler, loader: Loader
) -> Sampler:
    """The sampler; if blocks are downloaded, half of those at once ahead of need."""
    source = loader.source
    if not source.has_remote_blocks or source.blocks is None:
        return sampler
    num_blocks = int(source.blocks.max()) + 1
    num_images = len(source) * min(source.num_blocks_at_once // 2, num_blocks)
    num_steps = -(-num_images // (num_blocks * sampler.batch_size))
    warn = loader.damage.warn or warnings.warn
    return ReadAhead(sampler, source, num_steps, warn)


def start_reading(
    source: Source,
    *,
    crops: tuple[Crop, ...],
    device: torch.device,
    channels: int = 3,
    damage: Damage | None = None,
    loader_options: LoaderOptions | None = None,
) -> None:
    """Starts to decode a large set to keep, which takes seconds, by processes.

    Opening the batches with the same arguments waits for the end.
    """
    options = loader_options or LoaderOptions()
    if device.type != "cuda" or len(source) < _AHEAD_FROM:
        return
    loader = _loader(source, crops, channels, damage, options)
    device = torch.empty(0, device=device).device
    resident, _, limit = _is_resident(loader, device, options)
    if resident:
        workers, nvjpeg = options.num_workers, options.nvjpeg
        kept = resident_images(loader, device, workers, nvjpeg, ahead=True)
        kept.start_loading(limit.max_bytes)


def _loader(
    source: Source,
    crops: tuple[Crop, ...],
    channels: int,
    damage: Damage | None,
    options: LoaderOptions,
) -> Loader:
    return Loader(
        source,
        channels=channels,
        damage=damage,
        min_side=min_side_for(*crops),
        max_pixels=options.max_pixels,
    )


class Limit(NamedTuple):
    """The most bytes of decoded images to keep, and what part of which memory it is."""

    max_bytes: float
    name: str


def _is_resident(
    loader: Loader,
    device: torch.device,
    options: LoaderOptions,
    peers: Peers | None = None,
) -> tuple[bool, str, Limit]:
    """Whether the images are kept on the device, else why not; the limit."""
    name = f"a quarter of {_MEMORY_NAMES.get(device.type, 'free memory')}"
    if options.resident is not None:
        return options.resident, "as asked", Limit(math.inf, name)
    # What is kept already takes memory that was free; what is started has its limit.
    if is_resident(loader, device, options.nvjpeg):
        return True, "", Limit(math.inf, name)
    limit = Limit(RESIDENT_SHARE * free_bytes(device), name)
    needed = decoded_bytes(loader)
    if peers is not None:
        num_processes = peers.local_size
        if device.type == "cpu":  # of which a process gets its share, and all have one
            limit = limit._replace(max_bytes=limit.max_bytes * num_processes)
        else:  # they pass through the machine's memory
            host = Limit(HOST_SHARE * free_memory() * num_processes, _HOST_NAME)
            limit = min(limit, host)
        # Free memory differs between processes, and all must do the same.
        found = peers.gather((needed, limit))
        needed, limit = max(n for n, _ in found), min(most for _, most in found)
    elif device.type == "cpu" and env_count("LOCAL_WORLD_SIZE") > 1:
        limit = limit._replace(name=f"one process's share of {name}")
    most, name = format_bytes(int(limit.max_bytes)), limit.name
    reason = f"about {format_bytes(needed)}, more than {most}, {name}"
    return needed <= limit.max_bytes, reason, limit


def decoded_bytes(loader: Loader) -> int:
    """The size of all images as uint8, estimated from some spread over the source."""
    num_images = len(loader.source)
    num_probed = min(_NUM_PROBED, num_images)
    probed = np.linspace(0, num_images - 1, num_probed).astype(int).tolist()
    total = sum(loader.load(index)[1].numel() for index in probed)
    return total * num_images // num_probed


def free_bytes(device: torch.device) -> int:
    """Free memory of the device; of a CPU, that of this process."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return free_memory()
