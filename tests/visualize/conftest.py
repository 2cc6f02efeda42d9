"""Small models of each kind, and images of two sizes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from t2t.models.create import create_model
from t2t.models.weights import save

SMALL: dict[str, Any] = {"dim": 12, "depth": 2, "num_heads": 2, "token_dim": 8}
CLASSES = ("cat", "dog", "owl")
EXTRA = {"channels": 3, "mean": [0.4] * 3, "std": [0.25] * 3, "crop_fraction": 1.0}


def save_small(folder: Path, size: tuple[int, int] = (16, 24), **options: Any) -> Path:
    """One of our models, with `options` of its config."""
    torch.manual_seed(0)
    given = {**SMALL, "num_classes": len(CLASSES), **options}
    model = create_model("t2t_vit_7_32", image_size=size, **given)
    extra = {**EXTRA, "image_size": list(size)}
    if channels := options.get("in_channels"):
        extra |= {"channels": channels, "mean": [0.4] * channels}
        extra["std"] = [0.25] * channels
    names = CLASSES[: given["num_classes"]]
    path = folder / "small.safetensors"
    return save(model, path, name="t2t_vit_7_32", class_names=names, extra=extra)


@pytest.fixture(scope="session", name="save_small")
def fixture_save_small() -> Callable[..., Path]:
    return save_small


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small(tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="session")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    model = create_model("resnet18_32", num_classes=len(CLASSES))
    path = tmp_path_factory.mktemp("resnet") / "resnet.safetensors"
    extra = {**EXTRA, "image_size": [32, 32]}
    return save(model, path, name="resnet18_32", class_names=CLASSES, extra=extra)


@pytest.fixture(scope="session")
def timm_vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    model = timm.create_model("test_vit", num_classes=len(CLASSES))
    path = tmp_path_factory.mktemp("timm") / "vit.safetensors"
    extra = {**EXTRA, "image_size": [160, 160]}
    return save(model, path, name="test_vit", class_names=CLASSES, extra=extra)


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two pictures; one has a name that matplotlib and HTML must leave alone."""
    folder = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(0)
    paths = []
    for name, size in (("a <b> $x$ 猫.png", (40, 60)), ("two.jpg", (70, 30))):
        pixels = random.integers(0, 255, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / name)
        paths.append(folder / name)
    return paths
