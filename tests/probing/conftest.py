"""A small model, and images whose colours it tells apart."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from t2t.models.create import create_model
from t2t.models.weights import save
from t2t.training.logging import metrics_log

SMALL = {"dim": 16, "depth": 1, "num_heads": 1, "token_dim": 8}
EXTRA = {
    "image_size": [8, 8],
    "channels": 3,
    "mean": [0.4, 0.5, 0.6],
    "std": [0.2, 0.25, 0.3],
    "crop_fraction": 0.8,
}
CLASSES = "abc"


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    model = create_model("t2t_vit_7_32", num_classes=5, image_size=8, **SMALL)
    path = tmp_path_factory.mktemp("weights") / "small.safetensors"
    names = [f"class {number}" for number in range(5)]
    return save(model, path, name="t2t_vit_7_32", class_names=names, extra=EXTRA)


@pytest.fixture(scope="session")
def headless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What training without labels leaves."""
    torch.manual_seed(0)
    model = create_model("t2t_vit_7_32", num_classes=0, image_size=8, **SMALL)
    path = tmp_path_factory.mktemp("headless") / "small.safetensors"
    return save(model, path, name="t2t_vit_7_32", extra=EXTRA)


def draw_images(folder: Path, count: int, seed: int) -> Path:
    """Coloured noise, in one folder for each of three classes."""
    random = np.random.default_rng(seed)
    for number in range(count):
        label = number % 3
        # The colour varies within a class too, so that probes make mistakes.
        pixels = random.integers(0, 100, (9, 12, 3)) + random.integers(0, 100, 3)
        pixels[..., label] += 50
        path = folder / CLASSES[label] / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    return folder


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """48 images to learn from, and 13 to evaluate on."""
    folder = tmp_path_factory.mktemp("images")
    draw_images(folder / "train", 48, 0)
    draw_images(folder / "val", 13, 1)
    return folder


@pytest.fixture
def own_images(tmp_path: Path) -> Path:
    """Images that a test may change, not split."""
    return draw_images(tmp_path / "photos", 30, 2)


@pytest.fixture(autouse=True)
def no_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing curves takes longer than the runs here."""
    monkeypatch.setattr(
        metrics_log, "draw_curves", lambda rows, title, path, metric: path.touch()
    )


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
