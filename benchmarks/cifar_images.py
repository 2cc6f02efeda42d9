"""CIFAR-10's test images as the built-in model takes them."""

import torch
from torch import Tensor

from t2t.data.loader import Loader
from t2t.data.sources import open_splits

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)


def first_images(data: str, num_images: int) -> tuple[Tensor, Tensor]:
    """The first test images, normalised, in float64, and their labels."""
    source = open_splits(data).val
    loader = Loader(source)
    pixels = torch.stack([loader.load(index)[1] for index in range(num_images)])
    mean, std = (torch.tensor(each).double()[:, None, None] for each in (MEAN, STD))
    labels = torch.as_tensor(source.labels[:num_images])
    return (pixels.double() / 255 - mean) / std, labels
