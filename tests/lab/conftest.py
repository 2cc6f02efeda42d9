"""A study of two tiny arms, and images it trains on in a second."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from t2t.lab.studies.study import Claim, Study, variation
from t2t.training.logging import metrics_log
from t2t.training.recipe import EMA, OptimizerConfig, Recipe, Schedule

MakeStudy = Callable[[], Study]


@pytest.fixture(autouse=True, scope="module")
def no_curves() -> Iterator[None]:
    """Drawing a run's curves takes longer than these runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            metrics_log, "draw_curves", lambda rows, title, path, metric: path.touch()
        )
        yield


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    """Small products gain nothing from threads, and tests share few cores."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of coloured noise, 8×8 pixels: 48 to train on, 15 to judge by."""
    folder = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(0)
    for split, count in (("train", 48), ("val", 15)):
        for number in range(count):
            label = number % 3
            pixels = random.integers(0, 120, (8, 8, 3))
            pixels[..., label] += 60
            path = folder / split / "abc"[label] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.astype(np.uint8)).save(path)
    return folder


@pytest.fixture(scope="session")
def tiny_study(images: Path) -> Study:
    """T2T tokens against patches, two epochs of three steps."""
    base = Recipe(
        name="tiny",
        model="t2t_vit_7_32",
        model_args={
            "dim": 16,
            "depth": 1,
            "num_heads": 2,
            "token_dim": 8,
            "token_dropout": 0.0,
            "splits": ((3, 2, 1), (3, 1, 1), (3, 1, 1)),
        },
        data=str(images),
        image_size=(8, 8),
        epochs=2,
        batch_size=16,
        optimizer=OptimizerConfig(lr=1e-2, reference_batch_size=16),
        schedule=Schedule(warmup_epochs=1),
        ema=EMA(decay=0.9),
    )
    return Study(
        name="tiny_tokens",
        question="Which tokens?",
        paper="Soft ones.",
        arms={
            "t2t": base,
            "patches": variation(base, "patches", tokenizer="patch", patch_size=2),
        },
        claims=(
            Claim(first="t2t", second="patches", where="here", published=(81.5, 79.5)),
        ),
    )
