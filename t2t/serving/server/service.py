"""Predicts uploads: decodes them in threads, and computes them in batches."""

import asyncio
import io
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import torch
from PIL import Image
from starlette.requests import ClientDisconnect, Request

from t2t.data.crops import CenterCrop, apply_crop, min_side_for
from t2t.data.decoding.damage import DamagedImage
from t2t.data.decoding.decode import decode, image_size
from t2t.data.decoding.headers import image_format
from t2t.data.resources import num_cores
from t2t.data.rng import CounterRng
from t2t.errors import LocalError, on_one_line
from t2t.ops.ragged import Ragged
from t2t.serving.predictor import THRESHOLD, ClassProbability, Predictor
from t2t.serving.server.metrics import Metrics
from t2t.serving.server.model_thread import Computed, ModelThread
from t2t.serving.server.options import ServerOptions
from t2t.serving.server.problem import Problem
from t2t.serving.server.room import Room
from t2t.serving.server.upload import HeldBytes, busy, read_image
from t2t.shapes import Pixels

Value = TypeVar("Value")
Classes = tuple[ClassProbability, ...]

FORMATS = "JPEG, PNG, WebP, GIF, BMP, TIFF, AVIF and PNM"
# What decoding advises those who own the command line.
_OWNERS_ADVICE = ", or raise --max-pixels"


class Item(NamedTuple):
    """An image for the model, and how many classes are asked for."""

    pixels: Pixels
    top: int


class Service:
    """A model that answers many clients; used by one event loop."""

    def __init__(
        self, predictor: Predictor, options: ServerOptions, metrics: Metrics
    ) -> None:
        self.predictor = predictor
        self.trained = predictor.trained
        self.options = options
        self.metrics = metrics
        self.held = HeldBytes(options.max_held_bytes)
        self.room = Room(options.queue_size, self.full)
        self.pool = ThreadPoolExecutor(num_cores(), "t2t-decode")
        self.thread = ModelThread[Item, Classes](
            self._classify, options.max_batch, options.max_wait_ms / 1000
        )
        inside = "Images that are decoded, wait or are computed."
        metrics.gauge("t2t_requests_inside", inside, lambda: self.num_inside)
        held = "Uploads in memory."
        metrics.gauge("t2t_upload_bytes", held, lambda: self.held.num)

    def warm_up(self) -> None:
        """Predicts a grey image; raises an error for weights that output NaN.

        The first image takes long, since decoders are imported then.
        """
        file = io.BytesIO()
        Image.new("RGB", (64, 64), "grey").save(file, "JPEG")
        pixels = self.pool.submit(self.model_input, file.getvalue()).result()
        self.thread.submit(Item(pixels, 1)).result()

    def close(self, seconds: float) -> None:
        """Ends the threads once they have done what they do, or the time is over."""
        self.pool.shutdown(wait=False, cancel_futures=True)
        self.thread.close(seconds)

    async def predict(
        self, request: Request, top: int
    ) -> tuple[Classes, dict[str, Any]]:
        """The most probable classes of the upload, and the times it took."""
        started = time.perf_counter()
        with self.held.hold() as add:
            self.room.check()
            data = await read_image(request, self.options, add)
            arrived = time.perf_counter()
            with self.room.hold():
                computed, decoded = await while_here(
                    request, self._decode_and_compute(data, top)
                )
        done = time.perf_counter()
        self.metrics.decode_seconds.observe(decoded - arrived)
        self.metrics.wait_seconds.observe(computed.wait_seconds)
        self.metrics.model_seconds.observe(computed.model_seconds)
        self.metrics.batch_size.observe(computed.batch_size)
        return computed.result[:top], {
            "batch_size": computed.batch_size,
            "milliseconds": {
                "upload": milliseconds(arrived - started),
                "decode": milliseconds(decoded - arrived),
                "wait": milliseconds(computed.wait_seconds),
                "model": milliseconds(computed.model_seconds),
                "total": milliseconds(done - started),
            },
        }

    async def _decode_and_compute(
        self, data: bytes, top: int
    ) -> tuple[Computed[Classes], float]:
        pixels = await self.in_pool(lambda: self.model_input(data))
        decoded = time.perf_counter()
        return await self.compute(pixels, top), decoded

    async def compute(self, pixels: Pixels, top: int) -> Computed[Classes]:
        """The most probable classes of an image, from the next batch."""
        return await asyncio.wrap_future(self.thread.submit(Item(pixels, top)))

    async def in_pool(self, function: Callable[[], Value]) -> Value:
        """The value of a function that a decoding thread calls."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, function)

    def classes_json(self, classes: Iterable[ClassProbability]) -> list[dict[str, Any]]:
        """Predicted classes as JSON, with the names that `t2t predict --json` gives.

        With several labels per image, also whether a class reaches the threshold.
        """
        several = self.trained.is_multilabel
        return [
            {
                "index": each.index,
                "class": each.class_name,
                "name": each.name,
                "probability": round(each.probability, 6),
                **({"predicted": each.probability >= THRESHOLD} if several else {}),
            }
            for each in classes
        ]

    @property
    def num_inside(self) -> int:
        """Images that are decoded, wait or are computed."""
        return self.room.num_inside

    def full(self, num_inside: int) -> Problem:
        """The 503 for a request while too many others are in progress."""
        batch = max(self.metrics.batch_size.mean, 1.0)
        seconds = num_inside / batch * self.metrics.model_seconds.mean
        return busy(max(math.ceil(seconds), 1), f"{num_inside} images are waiting")

    def model_input(self, data: bytes) -> Pixels:
        """The model's input for an upload, as in evaluation."""
        return self.cropped(data, self.predictor.crop)

    def cropped(self, data: bytes, crop: CenterCrop) -> Pixels:
        """A crop of an upload; refuses what is not an image, or too large a one."""
        if not is_image(data):
            raise Problem(415, f"This is not an image in a known format: {FORMATS}.")
        height, width = image_size(data)
        if height * width > self.options.max_pixels:
            raise Problem(
                413,
                f"The image has {width:,} × {height:,} pixels; at most "
                f"{self.options.max_pixels:,} are taken: make it smaller.",
            )
        try:
            pixels = decode(
                data,
                channels=self.trained.channels,
                min_side=min_side_for(crop),
                max_pixels=self.options.max_pixels,
            )
        except DamagedImage as damaged:
            reason = on_one_line(damaged.reason.removesuffix(_OWNERS_ADVICE))[:300]
            raise Problem(422, f"The image cannot be read: {reason}.") from None
        except LocalError:
            raise Problem(
                413, "The image needs more memory than the server has: make it smaller."
            ) from None
        rng = CounterRng.of(0, 0, torch.arange(1))  # a centre draws nothing
        return apply_crop(crop, Ragged.from_images([pixels]), rng)

    def _classify(self, items: Sequence[Item]) -> list[Classes]:
        pixels = torch.cat([item.pixels for item in items]).to(self.predictor.device)
        return self.predictor._classify(pixels, max(item.top for item in items))


def is_image(data: bytes) -> bool:
    """Whether the first bytes are those of an image.

    Pillow reads many more formats, for some of which it starts other programs.
    """
    is_pnm = data[:1] == b"P" and data[1:2] in b"123456"
    is_heic = data[4:8] == b"ftyp"  # decoding says what to do about it
    return image_format(data) is not None or is_pnm or is_heic


async def while_here(request: Request, work: Awaitable[Value]) -> Value:
    """The result of the work, which is cancelled if the client leaves."""
    task = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(left(request))
    try:
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        leaving.cancel()
        task.cancel()


async def left(request: Request) -> None:
    """Returns when the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def milliseconds(seconds: float) -> float:
    """Milliseconds with two decimals."""
    return round(1000 * seconds, 2)
