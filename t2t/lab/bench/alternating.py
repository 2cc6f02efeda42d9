"""Prediction of one image at a time, ours and as published by turns."""

import io
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import v2

from t2t.errors import UserError
from t2t.lab.bench.as_published import AsPublished
from t2t.lab.bench.measure import Measured, Row
from t2t.lab.bench.timing import cpu_name
from t2t.models.class_names import imagenet_classes
from t2t.models.create import create_model
from t2t.models.trained import Trained, published_pixels
from t2t.models.vit import VisionTransformer
from t2t.serving.predictor import Predictor

PHOTO_SIZE = (500, 375)
"""Width and height of a usual ImageNet photograph."""

Probabilities = dict[int, float]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How long one photograph takes in each path."""

    model: str
    image_size: int
    threads: int
    rounds: int
    milliseconds: float
    """Median of `Predictor.predict`, from the JPEG to the five likeliest classes."""
    milliseconds_as_published: float
    """Median of the plain path, from the same bytes to the same answer."""
    ratio: float
    """Median of the rounds' ratios: how many times as fast ours is."""
    spread: tuple[float, float]
    """The quarter and three-quarter points of the rounds' ratios."""
    largest_difference: float
    """Between the probabilities of the two, relative to them."""
    torch: str


def measure_published(models: Sequence[str], command: str) -> Iterator[Measured]:
    """Each model's prediction as ours and as published, a row each."""
    for name in models:
        yield from two_rows(name, command)


def two_rows(name: str, command: str) -> Iterator[Measured]:
    """One model, ours and as published."""
    found = compare(name)
    paths = {
        name: found.milliseconds,
        f"{name}, as published": found.milliseconds_as_published,
    }
    for model, milliseconds in paths.items():
        row: Row = {
            "model": model,
            "mode": "infer",
            "image_size": found.image_size,
            "batch": 1,
            "precision": "fp32",
            "source": "jpeg",
            "images_per_second": round(1e3 / milliseconds, 2),
            "milliseconds": milliseconds,
            "peak_memory_gib": None,
            "torch": found.torch,
            "gpu": f"{cpu_name()}, {found.threads} threads",
            "command": command,
        }
        if model == name:
            row["times_as_fast"] = found.ratio
            row["times_as_fast_spread"] = list(found.spread)
        yield Measured(row)


def compare(name: str, *, rounds: int = 25, num_threads: int = 2) -> Comparison:
    """Times both paths by turns, so that what else the machine does falls on both."""
    torch.manual_seed(0)
    model = create_model(name)
    if not isinstance(model, VisionTransformer):
        raise UserError(f"{name} is timm's; the plain path is written for T2T-ViT.")
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        photo = a_photo()
        plain = plain_path(model)
        # Ours last: preparing a model for prediction may change it.
        ours = our_path(model, name)
        first, second = ours(photo), plain(photo)
        times: list[tuple[float, float]] = []
        for number in range(-3, rounds):
            pair = [ours, plain] if number % 2 else [plain, ours]
            seconds = {path: seconds_of(path, photo) for path in pair}
            if number >= 0:
                times.append((seconds[ours], seconds[plain]))
    finally:
        torch.set_num_threads(before)
    ratios = [theirs / mine for mine, theirs in times]
    low, _, high = statistics.quantiles(ratios, n=4)
    return Comparison(
        model=name,
        image_size=model.config.image_size[0],
        threads=num_threads,
        rounds=rounds,
        milliseconds=round(1e3 * statistics.median(mine for mine, _ in times), 2),
        milliseconds_as_published=round(
            1e3 * statistics.median(theirs for _, theirs in times), 2
        ),
        ratio=round(statistics.median(ratios), 3),
        spread=(round(low, 3), round(high, 3)),
        largest_difference=largest_difference(first, second),
        torch=torch.__version__,
    )


def largest_difference(some: Probabilities, others: Probabilities) -> float:
    """Between two answers, place by place: near ties may change places."""
    pairs = zip(some.values(), others.values(), strict=True)
    return max(abs(one / other - 1) for one, other in pairs)


def seconds_of(path: Callable[[bytes], Probabilities], photo: bytes) -> float:
    """How long one call takes."""
    started = time.perf_counter()
    path(photo)
    return time.perf_counter() - started


def our_path(model: VisionTransformer, name: str) -> Callable[[bytes], Probabilities]:
    """What `t2t predict` does with an image, on the CPU."""
    pixels = published_pixels(model)
    num_classes = model.config.num_classes
    names = tuple(imagenet_classes()[:num_classes])
    trained = Trained(
        model=model, name=name, path=name, class_names=names, data=None, **pixels
    )
    predictor = Predictor(trained, "cpu")

    def predict(photo: bytes) -> Probabilities:
        guesses = predictor.predict(photo, top=5)[0].guesses
        return {guess.index: guess.probability for guess in guesses}

    return predict


def plain_path(model: VisionTransformer) -> Callable[[bytes], Probabilities]:
    """The same by Pillow, torchvision and the network as the paper reads."""
    network = AsPublished(model)
    pixels = published_pixels(model)
    size = model.config.image_size
    transform = v2.Compose(
        [
            v2.Resize(int(size[0] / pixels["crop_fraction"]), Image.Resampling.BICUBIC),
            v2.CenterCrop(list(size)),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(pixels["mean"], pixels["std"]),
        ]
    )

    @torch.inference_mode()
    def predict(photo: bytes) -> Probabilities:
        picture = Image.open(io.BytesIO(photo)).convert("RGB")
        logits = network(transform(picture).unsqueeze(0))
        likely = logits.softmax(1)[0].topk(5)
        return dict(zip(likely.indices.tolist(), likely.values.tolist(), strict=True))

    return predict


def a_photo() -> bytes:
    """A JPEG with shapes of many scales, the size that photographs have."""
    generator = np.random.default_rng(0)
    total = np.zeros((PHOTO_SIZE[1], PHOTO_SIZE[0], 3))
    for side in (4, 16, 64):
        small = generator.integers(0, 256, (side, side, 3), dtype=np.uint8)
        total += np.asarray(Image.fromarray(small).resize(PHOTO_SIZE))
    file = io.BytesIO()
    Image.fromarray((total / 3).astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()
