"""torchvision's data sets, downloaded once."""

import json
import struct
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torchvision.datasets
from image_folders import write_image

from t2t.data.decoding.decode import decode
from t2t.data.sources import (
    NAMES,
    open_splits,
)
from t2t.data.sources.base import FileSource
from t2t.errors import UserError


class ArraySet:
    """Stands in for torchvision's CIFAR-10: two classes, four images."""

    def __init__(self, root, train, download):
        if not download and not (Path(root) / "there").exists():
            raise RuntimeError("Dataset not found or corrupted.")
        (Path(root) / "there").touch()
        num = 4 if train else 2
        self.data = np.arange(num * 12, dtype=np.uint8).reshape(num, 2, 2, 3)
        self.targets = [n % 2 for n in range(num)]
        self.classes = ["plane", "car"]


class FileSet:
    """Stands in for a set of torchvision that takes a loader of paths."""

    def __init__(self, root, split, download, loader):
        folder = Path(root) / split
        if not download and not folder.exists():
            raise RuntimeError("Dataset not found. You can use download=True.")
        for number in range(2):
            write_image(folder / f"{number}.png", number)
        self.paths = sorted(folder.iterdir())
        self.loader = loader

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return self.loader(self.paths[index]), index


def test_torchvision_arrays_are_downloaded_once(tmp_path, monkeypatch):
    monkeypatch.setenv("T2T_CACHE", str(tmp_path))
    monkeypatch.setattr(torchvision.datasets, "CIFAR10", ArraySet)
    splits = open_splits("cifar10")
    assert splits.train.classes == ("plane", "car")
    assert splits.val.labels.tolist() == [0, 1]
    assert splits.train.read(1)[:, 0, 1].tolist() == [15, 16, 17]
    assert splits.train.name(1) == "cifar10 train=True[1]"


def test_torchvision_files_keep_their_bytes(tmp_path, monkeypatch):
    monkeypatch.setenv("T2T_CACHE", str(tmp_path))
    monkeypatch.setattr(torchvision.datasets, "Flowers102", FileSet)
    splits = open_splits("flowers102")
    assert len(splits.train) == 4  # train and val together, as it is reported
    assert len(splits.val) == 2
    assert isinstance(splits.train, FileSource)  # by which a pack knows its files
    assert splits.train.labels.tolist() == [0, 1, 0, 1]
    assert splits.train.name(3).endswith("flowers102/val/1.png")
    assert splits.train.read(3)[:4] == b"\x89PNG"


def test_food101_as_torchvision_lays_it_out(tmp_path, monkeypatch):
    monkeypatch.setenv("T2T_CACHE", str(tmp_path))
    root = tmp_path / "data" / "food101" / "food-101"
    (root / "meta").mkdir(parents=True)
    for split, numbers in (("train", (1, 2)), ("test", (3,))):
        names = {food: [f"{food}/{n}" for n in numbers] for food in ("pie", "soup")}
        (root / "meta" / f"{split}.json").write_text(json.dumps(names))
        for number in numbers:
            for food in ("pie", "soup"):
                write_image(root / "images" / food / f"{number}.jpg", 10 * number)
    splits = open_splits("food101")
    assert splits.train.classes == ("pie", "soup")
    assert splits.train.labels.tolist() == [0, 0, 1, 1]
    assert splits.train.name(2).endswith("food-101/images/soup/1.jpg")
    assert decode(splits.val.read(1)).unique().tolist() == [30]


def test_pets_as_torchvision_lays_it_out(tmp_path, monkeypatch):
    monkeypatch.setenv("T2T_CACHE", str(tmp_path))
    root = tmp_path / "data" / "pets" / "oxford-iiit-pet"
    (root / "annotations").mkdir(parents=True)
    for split, number in (("trainval", 1), ("test", 2)):
        names = [f"Abyssinian_{number}", f"great_pyrenees_{number}"]
        lines = [f"{name} {n} 1 1" for n, name in enumerate(names, 1)]
        (root / "annotations" / f"{split}.txt").write_text("\n".join(lines))
        for name in names:
            write_image(root / "images" / f"{name}.jpg", 10 * number)
    splits = open_splits("pets")
    assert splits.train.classes == ("Abyssinian", "Great Pyrenees")
    assert splits.train.labels.tolist() == [0, 1]
    assert splits.val.name(1).endswith("images/great_pyrenees_2.jpg")
    assert decode(splits.val.read(1)).unique().tolist() == [20]


def test_mnist_as_torchvision_lays_it_out(tmp_path, monkeypatch):
    monkeypatch.setenv("T2T_CACHE", str(tmp_path))
    folder = tmp_path / "data" / "mnist" / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for split, num in (("train", 20), ("t10k", 10)):
        labels = bytes(n % 10 for n in range(num))
        pixels = bytes(n for n in range(num) for _ in range(28 * 28))
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(
            struct.pack(">II", 2049, num) + labels
        )
        (folder / f"{split}-images-idx3-ubyte").write_bytes(
            struct.pack(">IIII", 2051, num, 28, 28) + pixels
        )
    splits = open_splits("mnist")
    assert len(splits.train) == 20
    assert splits.val.labels.tolist() == list(range(10))
    assert splits.train.read(7).shape == (1, 28, 28)
    assert splits.train.read(7).unique().tolist() == [7]
    assert splits.train.classes[3].startswith("3")


def test_half_a_download_is_begun_again(tmp_path, monkeypatch):
    attempts = []

    def interrupted(root, train, download):
        if download:
            attempts.append(sorted(path.name for path in Path(root).iterdir()))
            (Path(root) / f"attempt{len(attempts)}").touch()
            if len(attempts) == 1:
                raise KeyboardInterrupt
        return ArraySet(root, train, download)

    monkeypatch.setenv("T2T_CACHE", str(tmp_path))
    monkeypatch.setattr(torchvision.datasets, "CIFAR10", interrupted)
    with pytest.raises(KeyboardInterrupt):
        open_splits("cifar10")
    assert not (tmp_path / "data" / "cifar10").exists()
    assert len(open_splits("cifar10").train) == 4
    assert attempts == [[], []]
    names = sorted(path.name for path in (tmp_path / "data" / "cifar10").iterdir())
    assert names == ["attempt2", "there"]


def test_no_network_is_one_sentence(tmp_path, monkeypatch):
    def unreachable(root, train, download):
        raise URLError("no route") if download else RuntimeError("Dataset not found")

    monkeypatch.setenv("T2T_CACHE", str(tmp_path))
    monkeypatch.setattr(torchvision.datasets, "CIFAR10", unreachable)
    with pytest.raises(UserError, match=r"'cifar10' is not in .*no route.*network"):
        open_splits("cifar10")


def test_every_named_set_is_one_of_torchvision():
    from t2t.data.sources.torchvision_sets import TORCHVISION_SETS

    for name, known in TORCHVISION_SETS.items():
        assert hasattr(torchvision.datasets, known.class_name), name
    assert {"digits", "cifar10", "cifar100", "flowers102", "pets", "food101"} <= set(
        NAMES
    )
