"""Tiny runs: a folder of 8×8 images, and a recipe that trains on it in a second."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from t2t.data.augment.config import Augmentation
from t2t.training import model_saver, retry_write, trainer
from t2t.training import train as train_module
from t2t.training.logging import metrics_log
from t2t.training.recipe import EMA, OptimizerConfig, Recipe, Schedule
from t2t.training.runtime import Runtime

__all__ = [
    "cpu",
    "images",
    "interrupt_after",
    "no_pictures",
    "no_waiting",
    "one_thread",
    "tiny",
    "uneven",
]

EVERYTHING = Augmentation(
    crop_padding=1,
    flip=0.5,
    rand_augment="rand-m9-mstd0.5-inc1",
    colour_jitter=(0.3, 0.3, 0.3, 0.1),
    mixup=0.8,
    cutmix=1.0,
    smoothing=0.1,
    erase=0.5,
)
PLAIN = Augmentation(crop_padding=1, flip=0.5, mixup=0.8, mix_group=2, smoothing=0.1)


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of coloured noise: 48 images to train on and 13 to validate on."""
    folder = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(0)
    for split, count in (("train", 48), ("val", 13)):
        for number in range(count):
            label = number % 3
            pixels = random.integers(0, 120, (8, 8, 3))
            pixels[..., label] += 100
            path = folder / split / "abc"[label] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.astype(np.uint8)).save(path)
    return folder


@pytest.fixture(scope="session")
def uneven(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same images with 3 of a class to train on, and 1 to validate on."""
    folder = tmp_path_factory.mktemp("uneven") / "images"
    shutil.copytree(images, folder)
    for split, num_left in (("train", 3), ("val", 1)):
        for path in sorted((folder / split / "c").iterdir())[num_left:]:
            path.unlink()
    return folder


@pytest.fixture(scope="session")
def tiny(images: Path) -> Callable[..., Recipe]:
    """A recipe of 12 steps; `random=True` turns on all that is drawn."""

    def make(*, random: bool = False, **changes: Any) -> Recipe:
        recipe = Recipe(
            name="tiny",
            model="t2t_vit_7_32",
            model_args={
                "dim": 16,
                "depth": 2,
                "num_heads": 2,
                "token_dim": 8,
                "token_dropout": 0.1 if random else 0.0,
                "splits": ((3, 2, 1), (3, 1, 1), (3, 1, 1)),
            },
            data=str(images),
            image_size=(8, 8),
            epochs=4,
            batch_size=16,
            drop_path=0.2 if random else 0.0,
            evaluate_every=2,
            optimizer=OptimizerConfig(lr=1e-2, reference_batch_size=16),
            schedule=Schedule(warmup_epochs=1),
            ema=EMA(decay=0.9),
            augmentation=EVERYTHING if random else PLAIN,
        )
        return replace(recipe, **changes)

    return make


@pytest.fixture
def cpu() -> Runtime:
    return Runtime(device="cpu", compile="off", workers=1)


@pytest.fixture
def interrupt_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """Lets the next call of `train` be asked to stop after so many of its steps."""

    def after(num_steps: int | None) -> None:
        class StopSignals:
            num_reads = 0

            def __enter__(self) -> "StopSignals":
                return self

            def __exit__(self, *_: object) -> None: ...

            def defer(self, warn: object) -> None: ...

            @property
            def received(self) -> bool:
                self.num_reads += 1
                return self.num_reads == num_steps

        monkeypatch.setattr(train_module, "StopSignals", StopSignals)

    return after


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing curves takes longer than these runs."""
    monkeypatch.setattr(
        metrics_log, "draw_curves", lambda rows, title, path, metric: path.touch()
    )


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody makes room on a disk that is full, nor is anything saved elsewhere."""
    monkeypatch.setattr(retry_write, "WAIT_SECONDS", 0)
    monkeypatch.setattr(model_saver, "fallback_folders", list)
    # These runs are so short that writing a checkpoint would never pay.
    monkeypatch.setattr(trainer, "SAVING_PAYS", 0.0)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Small products gain nothing from threads, and tests share few cores."""
    torch.set_num_threads(1)
