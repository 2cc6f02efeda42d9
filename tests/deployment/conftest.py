"""A small model on hard patches, which exports in a second, and real photographs."""

from pathlib import Path

import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import nn

from t2t.models.create import create_model
from t2t.models.weights import save

CLASSES = ("ant", "bee", "cat", "n02085620")


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two photographs of scikit-learn's, and parts of them."""
    folder = tmp_path_factory.mktemp("photos")
    for number, pixels in enumerate(load_sample_images().images):
        photo = Image.fromarray(pixels)
        photo.save(folder / f"{number}.jpg", quality=95)
        photo.crop((100, 50, 400, 390)).save(folder / f"{number}-part.png")
    return sorted(str(path) for path in folder.iterdir())


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    model = create_model(
        "deit_tiny",
        num_classes=len(CLASSES),
        image_size=24,
        patch_size=8,
        dim=16,
        depth=1,
        num_heads=2,
    )
    nn.init.normal_(model.head.weight, std=2.0)
    return save(
        model,
        tmp_path_factory.mktemp("weights") / "mine.safetensors",
        name="deit_tiny",
        class_names=CLASSES,
        extra={
            "image_size": [24, 24],
            "channels": 3,
            "mean": [0.4, 0.5, 0.6],
            "std": [0.2, 0.25, 0.3],
            "crop_fraction": 0.8,
            "data": "insects",
        },
    )
