"""Images a second that the input pipeline delivers, from JPEG files and from a pack.

    python benchmarks/input.py path/to/sample --out rows.json

The sample is a folder of class folders; it is repeated by hard links until there are
enough files, and packed at short side 256. Every row is the pipeline alone, with
nothing trained: read, decode, send, random crop to 224 px. Files come from the page
cache. The first rows time the stages one by one.
"""

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from t2t.data.batches import LoaderOptions, open_batches
from t2t.data.crops import CenterCrop, RandomCrop, apply_crop
from t2t.data.decoding.decode import decode, decode_each, decoder_name
from t2t.data.packing.pack import pack
from t2t.data.rng import CounterRng
from t2t.data.sources import Source, open_source
from t2t.ops.ragged import Ragged

SIZE = (224, 224)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sample", type=Path, help="folder of class folders of JPEGs")
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument("--copies", type=int, default=20, help="links to each image")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=3.0, help="time of each row")
    parser.add_argument("--workers", type=int, nargs="+", default=[os.cpu_count() or 1])
    parser.add_argument("--ahead", type=int, nargs="+", default=[3])
    parser.add_argument("--sources", nargs="+", default=["jpeg", "pack"])
    parser.add_argument("--skip-stages", action="store_true")
    parser.add_argument("--out", type=Path, help="write the rows there as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        rows = list(measure(arguments, Path(work)))
    if arguments.out:
        arguments.out.write_text(json.dumps(rows, indent=1) + "\n")


def measure(arguments: argparse.Namespace, work: Path) -> Iterator[dict[str, Any]]:
    """One row after the other, printed as it is measured."""
    device = torch.device(arguments.device)
    runtime = {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "cores": len(os.sched_getaffinity(0)),
        "decoder": decoder_name(device),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "command": " ".join(["python", *sys.argv]),
    }
    for name in arguments.sources:
        source = prepared(name, arguments.sample, work, arguments.copies)
        cases = pipelines(arguments, source, device)
        if not arguments.skip_stages:
            cases = [*stages(arguments, source, device), *cases]
        for case, deliver in cases:
            rate = images_per_second(deliver, arguments.seconds, device)
            row = {"source": name, **case, "images_per_second": round(rate), **runtime}
            print({k: row[k] for k in row if k not in runtime}, flush=True)
            yield row


def prepared(name: str, sample: Path, work: Path, copies: int) -> Source:
    """The sample repeated in a folder, or packed."""
    folder = work / "jpeg" / "train"
    if not folder.exists():
        for path in sorted(sample.glob("*/*")):
            target = folder / path.parent.name
            target.mkdir(parents=True, exist_ok=True)
            first = target / f"0-{path.name}"
            shutil.copyfile(path, first)
            for copy in range(1, copies):
                os.link(first, target / f"{copy}-{path.name}")
    if name == "jpeg":
        return open_source(work / "jpeg", "train")
    if not (work / "pack").exists():
        pack(work / "jpeg", work / "pack", short_side=256)
    return open_source(work / "pack", "train")


Case = tuple[dict[str, Any], Callable[[], Iterator[int]]]


def stages(
    arguments: argparse.Namespace, source: Source, device: torch.device
) -> list[Case]:
    """What reading, decoding and cropping reach each on their own."""
    batch, num_threads = arguments.batch, max(arguments.workers)
    indices = [index % len(source) for index in range(batch)]
    datas = [source.read(index) for index in indices]
    images = decode_each(datas, device=device)
    ragged = Ragged.from_images([i for i in images if isinstance(i, torch.Tensor)])
    crop = RandomCrop(size=SIZE)

    def threaded(task: Callable[[int], object]) -> Callable[[], Iterator[int]]:
        def deliver() -> Iterator[int]:
            with ThreadPoolExecutor(num_threads) as pool:
                while True:
                    yield len(list(pool.map(task, range(batch))))

        return deliver

    def by_gpu() -> Iterator[int]:
        with ThreadPoolExecutor(num_threads) as pool:
            while True:
                yield len(decode_each(datas, device=device, pool=pool))

    def crops() -> Iterator[int]:
        step = 0
        while True:
            rng = CounterRng.of(0, step, torch.arange(len(ragged)))
            yield len(apply_crop(crop, ragged, rng))
            step += 1

    threads = {"workers": num_threads}
    cases: list[Case] = [
        ({"stage": "read", **threads}, threaded(lambda i: source.read(indices[i]))),
        (
            {"stage": "decode by threads", **threads},
            threaded(lambda i: decode(datas[i])),
        ),
        ({"stage": "crop and resize"}, crops),
    ]
    if device.type == "cuda":
        cases.append(({"stage": "decode by nvJPEG"}, by_gpu))
    return cases


def pipelines(
    arguments: argparse.Namespace, source: Source, device: torch.device
) -> list[Case]:
    """The whole pipeline, for every setting asked for."""
    crops = {"train": RandomCrop(size=SIZE), "evaluate": CenterCrop(size=SIZE)}
    settings = [
        (kind, nvjpeg, workers, ahead)
        for nvjpeg in (False, True)
        for workers in arguments.workers
        for ahead in arguments.ahead
        for kind in (crops if nvjpeg else ["train"])
    ]
    cases: list[Case] = []
    for kind, nvjpeg, workers, ahead in settings:
        loader_options = LoaderOptions(
            resident=False, num_workers=workers, num_ahead=ahead, nvjpeg=nvjpeg
        )
        batches = open_batches(
            source,
            batch_size=arguments.batch,
            crops=(crops[kind],),
            device=device,
            loader_options=loader_options,
        )

        def deliver(batches: Any = batches) -> Iterator[int]:
            for batch in batches.steps(0, 1_000_000):
                yield len(batch.images)

        case = {
            "stage": "pipeline",
            "crop": kind,
            "batch": arguments.batch,
            "nvjpeg": nvjpeg,
            "workers": workers,
            "ahead": ahead,
        }
        cases.append((case, deliver))
    return cases


def images_per_second(
    deliver: Callable[[], Iterator[int]], seconds: float, device: torch.device
) -> float:
    """The rate after a third of the time was spent on warming up."""
    delivering = deliver()
    for limit in (seconds / 3, seconds):
        num_images = 0
        started = time.perf_counter()
        while time.perf_counter() - started < limit:
            num_images += next(delivering)
        if device.type == "cuda":
            torch.cuda.synchronize()
        elapsed = time.perf_counter() - started
    delivering.close()  # type: ignore[attr-defined]
    return num_images / elapsed


if __name__ == "__main__":
    main()
