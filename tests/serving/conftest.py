"""A small model that tells images apart, and images to show it."""

from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

from t2t.models.create import create_model
from t2t.models.weights import save
from t2t.serving.predictor import Predictor

CLASSES = ("ant", "bee", "cat", "dog", "elk", "fox")


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    model = create_model(
        "t2t_vit_7_32",
        num_classes=len(CLASSES),
        image_size=16,
        dim=16,
        depth=1,
        num_heads=1,
        token_dim=8,
    )
    # Untrained, but sure of itself, so that different images get different classes.
    nn.init.normal_(model.head.weight, std=3.0)
    return save(
        model,
        tmp_path_factory.mktemp("weights") / "small.safetensors",
        name="t2t_vit_7_32",
        class_names=CLASSES,
        extra={
            "image_size": [16, 16],
            "channels": 3,
            "mean": [0.4, 0.5, 0.6],
            "std": [0.2, 0.25, 0.3],
            "crop_fraction": 0.8,
        },
    )


@pytest.fixture(scope="session")
def predictor(weights: Path) -> Predictor:
    return Predictor(weights, "cpu")


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of all sizes, four to a class, in the layout of training data."""
    folder = tmp_path_factory.mktemp("photos")
    for number in range(4 * len(CLASSES)):
        place = folder / CLASSES[number % len(CLASSES)]
        place.mkdir(exist_ok=True)
        generator = torch.Generator().manual_seed(number)
        small = torch.randint(256, (3, 4, 3), generator=generator, dtype=torch.uint8)
        size = (20 + 3 * number, 50 - number)
        picture = Image.fromarray(small.permute(1, 2, 0).numpy()).resize(size)
        picture.save(place / f"{number:02}.{'png' if number % 2 else 'jpg'}")
    return folder
