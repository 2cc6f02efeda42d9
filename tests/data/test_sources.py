"""Folders, named sets, and how any source is found, cut and refused."""

import errno
import io
import json
import os
import pickle
import struct
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torch
import torchvision.datasets
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from t2t.data.decoding.decode import DamagedImage, decode
from t2t.data.sources import (
    NAMES,
    ArraySource,
    Source,
    Subset,
    holdout,
    mixed_order,
    open_source,
    open_splits,
    register_source,
)
from t2t.data.sources.base import FileSource
from t2t.data.sources.filenames import expand_braces, num_missing, split_of
from t2t.data.sources.labels import folder_meant
from t2t.data.sources.named import NAMED
from t2t.data.sources.opening import find_splits
from t2t.data.sources.process_cache import ProcessCache
from t2t.data.sources.splitting import _scrambled, held_out_indices, permutation
from t2t.errors import LocalError, UserError


def write_image(path: Path, value: int = 0, size: int = 8) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (size, size), (value, value, value)).save(path)


def make_folder(root: Path, counts: dict[str, int], suffix: str = ".png") -> Path:
    """Class folders with so many images, the n-th of them of brightness n."""
    for name, num in counts.items():
        for number in range(num):
            write_image(root / name / f"{number:03d}{suffix}", number)
    return root


def array_source(labels, classes=None):
    labels = np.asarray(labels)
    images = torch.arange(len(labels), dtype=torch.uint8).view(-1, 1, 1, 1)
    names = classes or [str(n) for n in range(int(labels.max()) + 1)]
    return ArraySource(images, labels, names, "array")


def test_train_and_val_folders(tmp_path):
    make_folder(tmp_path / "train", {"cat": 3, "ant": 2})
    make_folder(tmp_path / "val", {"cat": 1, "ant": 1})
    splits = open_splits(tmp_path)
    assert splits.train.classes == splits.val.classes == ("ant", "cat")
    assert splits.train.labels.tolist() == [0, 0, 1, 1, 1]
    assert splits.train.labels.dtype == np.int64
    assert splits.train.name(4) == str(tmp_path / "train" / "cat" / "002.png")
    assert decode(splits.train.read(4)).unique().tolist() == [2]
    assert "5 images to train on, 2 to evaluate on" in splits.description


@pytest.mark.parametrize("name", ["valid", "validation", "test", "Val"])
def test_other_names_of_the_validation_folder(tmp_path, name):
    make_folder(tmp_path / "Train", {"a": 2, "b": 2})
    make_folder(tmp_path / name, {"a": 1, "b": 1})
    assert len(open_splits(tmp_path).val) == 2


def test_val_comes_before_test_and_test_can_be_asked_for(tmp_path):
    for split, num in (("train", 4), ("val", 2), ("test", 3)):
        make_folder(tmp_path / split, {"a": num, "b": num})
    assert len(open_splits(tmp_path).val) == 4
    assert len(open_source(tmp_path, "test")) == 6
    assert len(open_source(tmp_path, "train")) == 8
    assert len(open_source(tmp_path, "validation")) == 4
    with pytest.raises(UserError, match=r"no split 'tset'.*test"):
        open_source(tmp_path, "tset")


def test_one_folder_is_split_by_a_seed_alike_in_every_class(tmp_path):
    make_folder(tmp_path, {"few": 4, "many": 36})
    splits = open_splits(tmp_path, seed=3, val_fraction=0.25)
    assert np.bincount(splits.val.labels).tolist() == [1, 9]
    names = {splits.train.name(n) for n in range(len(splits.train))}
    held = {splits.val.name(n) for n in range(len(splits.val))}
    assert len(names | held) == 40
    assert not names & held
    again = open_splits(tmp_path, seed=3, val_fraction=0.25)
    assert held == {again.val.name(n) for n in range(len(again.val))}
    other = open_splits(tmp_path, seed=4, val_fraction=0.25)
    assert held != {other.val.name(n) for n in range(len(other.val))}
    assert len(open_source(tmp_path, "all")) == 40
    assert len(open_source(tmp_path, "val", seed=3, val_fraction=0.25)) == 10


def test_a_rare_class_is_in_both_parts(tmp_path):
    make_folder(tmp_path, {"few": 2, "many": 48})
    splits = open_splits(tmp_path, val_fraction=0.1)
    assert np.bincount(splits.val.labels).tolist() == [1, 4]
    assert np.bincount(splits.train.labels).tolist() == [1, 44]
    for fraction in (0.001, 0.99):
        splits = open_splits(tmp_path, val_fraction=fraction)
        assert np.bincount(splits.val.labels)[0] == 1
        assert np.bincount(splits.train.labels)[0] == 1


def test_images_deeper_in_a_class_and_other_files(tmp_path):
    make_folder(tmp_path, {"a": 1, "b": 2})
    folders = list("pqrstuvw")  # more than a disk would list in order by chance
    make_folder(tmp_path / "c", dict.fromkeys(folders, 8))
    write_image(tmp_path / "a" / "more" / "x.JPEG")
    write_image(tmp_path / "a" / ".hidden.png")
    (tmp_path / "a" / "notes.txt").write_text("not an image")
    write_image(tmp_path / ".trash" / "y.png")
    write_image(tmp_path / "b" / "@eaDir" / "000.png" / "small.png")
    (tmp_path / "__MACOSX" / "a").mkdir(parents=True)
    source = open_source(tmp_path, "all")
    assert source.classes == ("a", "b", "c")
    names = [os.path.relpath(source.name(n), tmp_path) for n in range(len(source))]
    assert names[:4] == ["a/000.png", "a/more/x.JPEG", "b/000.png", "b/001.png"]
    assert names[4:] == [f"c/{each}/{n:03d}.png" for each in folders for n in range(8)]


def test_images_that_are_not_read_are_counted_and_named(tmp_path):
    make_folder(tmp_path, {"a": 4, "b": 4})
    assert open_splits(tmp_path).notes == ()
    for name in ("a/1.HEIC", "a/2.svg", "b/in/3.heic", "b/.4.heic", "b/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    heic, svg = open_splits(tmp_path).notes
    assert heic.startswith(f"2 .heic files ({tmp_path}/a/1.HEIC, …) are skipped")
    assert svg.startswith(f"{tmp_path}/a/2.svg is skipped: ")
    assert open_source(tmp_path, "all").labels.tolist() == [0] * 4 + [1] * 4
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "5.jp2").touch()
    with pytest.raises(UserError, match=r"c holds no images.*/c/5.jp2 is skipped"):
        open_splits(tmp_path)


def test_a_png_called_jpeg_is_read(tmp_path):
    make_folder(tmp_path, {"a": 2, "b": 2}, ".png")
    for path in tmp_path.rglob("*.png"):
        path.rename(path.with_suffix(".JPEG"))
    source = open_source(tmp_path, "all")
    assert decode(source.read(1)).unique().tolist() == [1]


def test_a_source_travels_to_another_process(tmp_path):
    make_folder(tmp_path, {"a": 2, "b": 2})
    source = open_splits(tmp_path).train
    copy = pickle.loads(pickle.dumps(source))
    assert [copy.name(n) for n in range(2)] == [source.name(n) for n in range(2)]
    assert copy.read(1) == source.read(1)


def test_an_image_that_vanished_is_named(tmp_path):
    make_folder(tmp_path, {"a": 2, "b": 2})
    source = open_source(tmp_path, "all")
    (tmp_path / "a" / "001.png").unlink()
    with pytest.raises(DamagedImage, match=r"a/001\.png: No such file"):
        source.read(1)


def test_a_link_to_a_class_that_leads_nowhere_is_told(tmp_path):
    make_folder(tmp_path, {"a": 2, "b": 2})
    (tmp_path / "c").symlink_to("nowhere")
    (tmp_path / "README").symlink_to("a/000.png")
    (note,) = open_splits(tmp_path).notes
    end = "is skipped: the target does not exist."
    assert note == f"{tmp_path / 'c'} {end}"
    (tmp_path / "d").symlink_to("d")
    assert "links (" in open_splits(tmp_path).notes[0]


def test_links_in_circles_are_not_followed(tmp_path):
    root = make_folder(tmp_path / "pets", {"cat": 2, "dog/small": 3})
    make_folder(tmp_path / "more", {"cats": 1})
    (root / "cat" / "back").symlink_to("..")
    (root / "cat" / "up").symlink_to(tmp_path)
    (root / "cat" / "self").symlink_to("self")
    (root / "dog" / "small" / "again").symlink_to("../../dog")
    (root / "round").symlink_to(".")
    (root / "itself").symlink_to("itself")
    # One link each way, neither to a folder it lies in.
    (root / "cat" / "more").symlink_to(tmp_path / "more" / "cats")
    (tmp_path / "more" / "cats" / "pets").symlink_to(root / "cat")
    source = open_source(root, "all")
    assert source.classes == ("cat", "dog")
    assert source.labels.tolist() == [0] * 3 + [1] * 3
    assert source.name(2) == str(root / "cat" / "more" / "000.png")


def test_a_pipe_among_the_images_is_named_and_not_waited_for(tmp_path):
    make_folder(tmp_path, {"cat": 2, "dog": 2})
    os.mkfifo(tmp_path / "cat" / "pipe.png")
    source = open_source(tmp_path, "all")
    assert source.name(2) == str(tmp_path / "cat" / "pipe.png")
    with pytest.raises(DamagedImage, match=r"pipe.png: not a regular file"):
        source.read(2)


def test_a_folder_called_an_image_is_searched(tmp_path):
    make_folder(tmp_path, {"cat/album.jpg": 2, "dog.png": 1})
    assert open_source(tmp_path, "all").labels.tolist() == [0, 0, 1]


def test_names_beyond_ascii(tmp_path):
    make_folder(tmp_path, {"Äpfel": 2, "ねこ": 2})
    source = open_source(tmp_path, "all")
    assert source.classes == ("Äpfel", "ねこ")
    assert Path(source.name(3)).is_file()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda root: None, "is empty"),
        (lambda root: write_image(root / "1.png"), "images but no class folders"),
        (
            lambda root: (make_folder(root, {"a": 2}), (root / "b").mkdir()),
            "b holds no images",
        ),
        (
            lambda root: (
                make_folder(root / "train", {"a": 1, "b": 1}),
                make_folder(root / "val", {"a": 1, "c": 1}),
            ),
            "class 'b' only for training and the class 'c' only for validation",
        ),
        (
            lambda root: (
                make_folder(root / "train", {"a": 1, "b": 1}),
                make_folder(root / "val", {"a": 1}),
            ),
            "class 'b' only for training: both",
        ),
        (lambda root: make_folder(root, {"a": 3, "b": 1}), "'b'.* single image"),
        (lambda root: (root / "train").mkdir(), "train holds no folders: it should"),
        (
            lambda root: (root / "1.heic").touch(),
            r"holds no folders: .* class\. .*1\.heic is skipped",
        ),
        (
            lambda root: make_folder(root, {"bus": 2, "train": 2}),
            "If train is itself a class, put .* as in .*/train/train/1.jpg",
        ),
    ],
)
def test_a_folder_that_cannot_be_trained_on(tmp_path, make, sentence):
    make(tmp_path)
    with pytest.raises(UserError, match=sentence) as caught:
        open_splits(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("names", [("val", "test"), ("test",)])
def test_splits_without_one_to_train_on(tmp_path, names):
    for name in names:
        make_folder(tmp_path / name, {"a": 2, "b": 3})
    with pytest.raises(UserError, match=f"has only {' and '.join(names)} images"):
        open_splits(tmp_path)
    assert open_source(tmp_path, "val").classes == ("a", "b")
    assert len(open_source(tmp_path, "test")) == 5


def test_classes_that_are_called_like_splits(tmp_path):
    make_folder(tmp_path, {"test": 3, "val": 3})
    assert open_splits(tmp_path).train.classes == ("test", "val")


def test_a_folder_goes_before_a_download_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_folder(tmp_path / "pets", {"cat": 12, "dog": 12})
    splits = open_splits("pets")
    assert splits.train.classes == ("cat", "dog")
    assert splits.description.startswith("./pets: ")
    (note,) = splits.notes
    assert note.startswith("Data: the folder ./pets, not the data set of that name")
    assert note in open_source("pets", "val").notes
    assert open_splits("./pets").notes == ()
    make_folder(tmp_path / "digits", {"cat": 12, "dog": 12})
    (note,) = open_splits("digits").notes  # the default, and no download
    assert "for the folder of that name, use ./digits" in note
    (tmp_path / "mnist").mkdir()
    assert find_splits("mnist").title == "mnist"  # an empty folder is in nobody's way


def test_suffixes_are_told_the_commonest_first(tmp_path):
    make_folder(tmp_path, {"a": 2})
    (tmp_path / "b").mkdir()
    with pytest.raises(UserError, match=r"add some \(\.jpg, \.png, \.jpeg, "):
        open_splits(tmp_path)


def test_class_folders_one_too_deep_are_told(tmp_path):
    make_folder(tmp_path / "deep", {"a": 2, "b": 2})
    train = open_splits(tmp_path).train
    assert folder_meant(train) == f" Did you mean {tmp_path / 'deep'}?"
    assert folder_meant(open_splits(tmp_path / "deep").train) == ""
    write_image(tmp_path / "deep" / "of no class.png")
    assert folder_meant(open_splits(tmp_path).train) == ""


def test_paths_that_are_no_data(tmp_path):
    with pytest.raises(UserError, match=r"no file or folder.*Did you mean cifar10"):
        open_splits("cifar1O")
    make_folder(tmp_path / "flowers", {"a": 1})
    with pytest.raises(UserError, match=r"Did you mean .*flowers\?"):
        open_splits(tmp_path / "flower")
    with pytest.raises(UserError, match="that name: give a folder of images"):
        open_splits(tmp_path / "missing")
    with pytest.raises(UserError, match=r"Did you mean cifar10 or cifar100\?"):
        open_splits("CIFAR-10")
    with pytest.raises(
        UserError, match="name of the data is empty: give a folder of images"
    ):
        open_splits("")  # which is not the folder that one stands in
    with pytest.raises(UserError, match="is neither a file nor a folder"):
        open_splits(os.devnull)
    write_image(tmp_path / "one.png")
    with pytest.raises(UserError, match="is one image"):
        open_splits(tmp_path / "one.png")
    (tmp_path / "images.zip").write_bytes(b"PK")
    with pytest.raises(UserError, match="unpack"):
        open_splits(tmp_path / "images.zip")
    make_folder(tmp_path / "c", {"a": 4, "b": 4})
    with pytest.raises(UserError, match="between 0 and 1"):
        open_splits(tmp_path / "c", val_fraction=1.5)


def test_digits_need_nothing():
    splits = open_splits("digits", seed=5)
    assert len(splits.train) == 1437
    assert len(splits.val) == 360
    assert splits.train.classes == tuple("0123456789")
    assert np.bincount(splits.val.labels).min() >= 34
    image = splits.train.read(0)
    assert image.shape == (1, 8, 8)
    assert image.dtype == torch.uint8
    assert max(int(splits.val.read(n).max()) for n in range(20)) == 255
    assert decode(image).shape == (3, 8, 8)
    # Fixed, whatever the seed and the version: results are compared on it.
    assert splits.val.name(0) == open_source("digits", "val").name(0)
    assert splits.val.labels[:12].tolist() == [2, 4, 9, 5, 5, 9, 4, 1, 7, 5, 0, 7]


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


def test_hold_out_takes_exactly_so_many():
    source = array_source([0] * 50 + [1] * 30 + [2] * 20)
    rest, held = holdout(source, 11, seed=1)
    assert len(held) == 11
    assert len(rest) == 89
    assert np.bincount(held.labels).tolist() in ([6, 3, 2], [5, 4, 2], [5, 3, 3])
    assert sorted([*rest.indices, *held.indices]) == list(range(100))
    with pytest.raises(UserError, match="1 to 97"):
        holdout(source, 98)


def test_every_class_is_left_something_to_train_on():
    source = array_source([0] * 100 + [1] + [2] * 2)
    for num in (1, 60, 100):
        rest, held = holdout(source, num)
        assert len(held) == num
        assert set(rest.labels.tolist()) == {0, 1, 2}


@settings(deadline=None, max_examples=80)
@given(
    counts=st.lists(st.integers(2, 40), min_size=1, max_size=8),
    share=st.floats(0, 1),
    seed=st.integers(0, 2**63),
)
def test_held_out_indices_share_out_evenly(counts, share, seed):
    labels = np.repeat(np.arange(len(counts)), counts)
    num = round(share * len(labels))
    held = held_out_indices(labels, num, seed)
    assert len(held) == len(set(held.tolist())) == num
    taken = np.bincount(labels[held], minlength=len(counts))
    assert (np.abs(taken - np.array(counts) * num / len(labels)) < 1 + 1e-9).all()


def test_a_permutation_is_the_same_for_ever():
    # The first numbers of splitmix64 from seed 0, as published.
    assert _scrambled(np.arange(2), 0).tolist() == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
    ]
    assert permutation(8, 0).tolist() == [2, 4, 6, 5, 1, 7, 0, 3]
    assert sorted(permutation(1000, 7)) == list(range(1000))
    assert not np.array_equal(permutation(1000, 7), permutation(1000, 8))


def test_some_images_of_a_source():
    source = array_source([0, 1, 2, 0, 1, 2])
    part = Subset(source, [5, 0])
    assert part.labels.tolist() == [2, 0]
    assert part.read(0).item() == 5
    assert part.name(1) == "array[0]"
    assert part.is_in_memory
    with pytest.raises(IndexError, match="outside"):
        Subset(source, [6])


def test_a_fingerprint_tells_images_apart(tmp_path):
    def fingerprint():
        return open_splits(tmp_path).train.fingerprint()

    make_folder(tmp_path, {"a": 4, "b": 4})
    first = fingerprint()
    assert fingerprint() == first
    (tmp_path / "a/000.png").rename(tmp_path / "a/x.png")
    assert fingerprint() != first
    (tmp_path / "a/x.png").rename(tmp_path / "a/000.png")
    assert fingerprint() == first
    source = array_source([0, 1, 1, 0])
    assert source.fingerprint() != array_source([0, 1, 0, 1]).fingerprint()
    parts = [Subset(source, part).fingerprint() for part in ([0, 1], [3, 2])]
    assert parts[0] != parts[1]


def test_mixed_order_reads_no_block_twice():
    class Blocked(Source):
        labels = np.zeros(60, np.int64)
        classes = ("a",)
        blocks = np.repeat(np.arange(12), 5)
        num_blocks_at_once = 3

        def read(self, index):
            raise NotImplementedError

        def name(self, index):
            return str(index)

    order = mixed_order(Blocked(), seed=2)
    assert sorted(order) == list(range(60))
    blocks = Blocked.blocks[order].reshape(4, 15)
    windows = [set(row.tolist()) for row in blocks]
    assert [len(window) for window in windows] == [3, 3, 3, 3]
    assert not set.intersection(*windows)
    assert any(len(set(row[:5].tolist())) > 1 for row in blocks)
    others = Blocked.blocks[mixed_order(Blocked(), seed=4)].reshape(4, 15)
    assert windows != [set(row.tolist()) for row in others]
    whole = mixed_order(array_source(range(9)), seed=2)
    assert sorted(whole) == list(range(9))


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a-{08..11}.tar", ["a-08.tar", "a-09.tar", "a-10.tar", "a-11.tar"]),
        ("{train,val}-{0..1}", ["train-0", "train-1", "val-0", "val-1"]),
        ("plain.tar", ["plain.tar"]),
    ],
)
def test_braces(pattern, names):
    assert expand_braces(pattern) == names


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("train-00000-of-00004.parquet", "train"),
        ("data/validation-0.parquet", "val"),
        ("cifar10_test.tar", "test"),
        ("val/shard-000.tar", "val"),
        ("train/more/val-000.tar", "val"),
        ("constrained-000.tar", None),
        ("trainer.tar", None),
    ],
)
def test_the_split_in_a_files_name(path, split):
    assert split_of(path) == split


def test_missing_files_by_their_own_count():
    assert num_missing(["train-00000-of-00004.tar", "train-00002-of-00004.tar"]) == 2
    assert num_missing(["a.tar", "b.tar"]) == 0
    assert num_missing([f"{n}/train-0-of-1.tar" for n in range(2)]) == 0


def test_encoded_bytes_come_out_as_they_are(tmp_path):
    make_folder(tmp_path, {"a": 1, "b": 1})
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "PNG")
    assert open_source(tmp_path, "all").read(0) == buffer.getvalue()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (errno.ENFILE, "was not read .*no fault of its own: allow more open files"),
        (errno.ENOMEM, "was not read .*no fault of its own: leave more memory free"),
        (errno.ESTALE, "was not read .*no fault of its own: see to the disk"),
        (errno.EIO, "Input/output error"),
        (errno.EACCES, "Permission denied"),
        (None, "was not read .*no fault of its own: leave more memory free"),
    ],
)
def test_no_image_is_damaged_for_what_the_machine_lacks(
    tmp_path, monkeypatch, error, told
):
    def refuse(path):
        raise OSError(error, os.strerror(error), path) if error else MemoryError

    source = FileSource(tmp_path, ["a.png"], np.zeros(1, np.int64), ("all",))
    monkeypatch.setattr("t2t.data.sources.base.read_whole", refuse)
    kind = LocalError if "no fault" in told else DamagedImage
    with pytest.raises(kind, match=rf"a\.png:? {told}"):
        source.read(0)


def test_a_flat_folder_is_data_for_tasks_without_labels(tmp_path):
    for number in range(20):
        write_image(tmp_path / f"{number:02d}.png", number)
    with pytest.raises(UserError, match="or train with a task that needs no labels"):
        open_splits(tmp_path)
    splits = open_splits(tmp_path, labels=False, seed=1)
    assert (len(splits.train), len(splits.val)) == (18, 2)
    assert splits.train.classes == ()
    assert not splits.train.is_labelled
    assert splits.train.labels.tolist() == [0] * 18
    assert splits.description.endswith("held out by seed 1), no labels")
    again = open_splits(tmp_path, labels=False, seed=1)
    assert splits.val.fingerprint() == again.val.fingerprint()
    other = open_splits(tmp_path, labels=False, seed=2)
    assert splits.val.fingerprint() != other.val.fingerprint()
    (tmp_path / "00.png").write_bytes(b"damaged")
    whole = open_source(tmp_path, "all", labels=False)
    with pytest.raises(DamagedImage):
        decode(whole.read(0))
    rest, held = holdout(splits.train, 17)
    assert (len(rest), len(held)) == (1, 17)
    with pytest.raises(UserError, match=r"with one left to train on: .* 1 to 17"):
        holdout(splits.train, 18)


def test_images_anywhere_in_a_folder_need_no_labels(tmp_path):
    write_image(tmp_path / "1.png")
    write_image(tmp_path / "b" / "deep" / "2.png")
    write_image(tmp_path / "a" / "3.png")
    (tmp_path / "empty").mkdir()
    (tmp_path / "a" / "4.heic").touch()
    source = open_source(tmp_path, "all", labels=False)
    names = [os.path.relpath(source.name(n), tmp_path) for n in range(len(source))]
    assert names == ["1.png", "a/3.png", "b/deep/2.png"]
    assert not source.is_labelled
    (note,) = source.notes
    assert "4.heic" in note


def test_class_folders_keep_their_labels_for_scoring(tmp_path):
    make_folder(tmp_path, {"cat": 5, "dog": 5})
    labelled = open_splits(tmp_path)
    splits = open_splits(tmp_path, labels=False)
    assert splits.train.classes == ("cat", "dog")
    assert splits.val.fingerprint() == labelled.val.fingerprint()
    # A class with one image cannot be in both parts, which only labels would need.
    make_folder(tmp_path, {"eel": 1})
    splits = open_splits(tmp_path, labels=False)
    assert (len(splits.train), len(splits.val)) == (10, 1)
    assert splits.train.classes == ("cat", "dog", "eel")


def test_train_and_val_folders_need_no_labels(tmp_path):
    make_folder(tmp_path / "train", {"cat": 3, "dog": 3})
    write_image(tmp_path / "val" / "1.png")
    splits = open_splits(tmp_path, labels=False)
    assert (len(splits.train), len(splits.val)) == (6, 1)
    assert not splits.train.is_labelled
    assert not splits.val.is_labelled
    assert splits.description.endswith("evaluated on its val split), no labels")


@pytest.mark.parametrize(
    ("num", "sentence"), [(0, "holds no images: add some"), (1, "has a single image")]
)
def test_too_few_images_without_labels(tmp_path, num, sentence):
    (tmp_path / "text.txt").touch()
    for number in range(num):
        write_image(tmp_path / f"{number}.png")
    with pytest.raises(UserError, match=sentence):
        open_splits(tmp_path, labels=False)


def test_an_array_needs_no_labels():
    images = torch.arange(4, dtype=torch.uint8).view(-1, 1, 1, 1)
    source = ArraySource(images)
    assert not source.is_labelled
    assert source.labels.tolist() == [0] * 4
    assert source.fingerprint() != ArraySource(images + 1).fingerprint()


def test_a_source_without_labels_is_told_apart_by_its_names():
    class Named(Source):
        def __init__(self, *names):
            self.names = names
            self.drop_labels()

        def __len__(self):
            return len(self.names)

        def read(self, index):
            return b""

        def name(self, index):
            return self.names[index]

    assert Named("a", "b").fingerprint() == Named("a", "b").fingerprint()
    assert Named("a", "b").fingerprint() != Named("a", "c").fingerprint()


@pytest.fixture
def own_names(monkeypatch):
    """Forgets what a test registers."""
    monkeypatch.setattr("t2t.data.sources.named.NAMED", named := dict(NAMED))
    monkeypatch.setattr("t2t.data.sources.opening.NAMED", named)


def test_a_users_source_has_a_name(own_names, tmp_path, monkeypatch):
    opened = []

    def open_mine(split):
        opened.append(split)
        return array_source([0] * 10 + [1] * 10)

    register_source("mine", open_mine)
    splits = open_splits("mine")
    assert (len(splits.train), len(splits.val)) == (18, 2)
    assert splits.description.startswith("mine: 18 images")
    register_source("mine", open_mine, splits=("train", "test"))
    assert len(open_splits("mine").val) == 20
    assert len(open_source("mine", "test")) == 20
    assert opened == ["all", "train", "test", "test"]
    make_folder(tmp_path / "mine", {"a": 2, "b": 2})
    monkeypatch.chdir(tmp_path)
    (note,) = open_splits("mine").notes
    assert note == "Data: the data set mine; for the folder of that name, use ./mine."
    assert len(open_splits("./mine").train) == 2


def test_a_users_source_needs_no_labels(own_names):
    images = torch.zeros((20, 1, 2, 2), dtype=torch.uint8)
    register_source("mine", lambda split: ArraySource(images))
    assert not open_splits("mine", labels=False).train.is_labelled
    for open_it in (open_splits, lambda name: open_source(name, "all")):
        with pytest.raises(UserError, match="mine has no labels: add them, or train"):
            open_it("mine")


def test_names_and_splits_of_a_users_source_are_checked(own_names):
    with pytest.raises(UserError, match="'cifar10' is already a data set"):
        register_source("cifar10", lambda split: array_source([0, 1]))
    with pytest.raises(UserError, match="should be of train, val, test, all"):
        register_source("mine", lambda split: array_source([0, 1]), splits=("dev",))
    register_source("wildlife", lambda split: array_source([0, 1]))
    with pytest.raises(UserError, match=r"Did you mean wildlife\?"):
        open_splits("wildlif")


def test_a_process_keeps_the_last_values():
    cache = ProcessCache(10, len)
    made = []

    def make(key):
        made.append(key)
        return "x" * key

    for key in (4, 5, 4, 3, 5, 20, 4):
        assert cache.get(key, make) == "x" * key
    # 5 is dropped for 3, as 4 was used after it; 20 alone exceeds the limit.
    assert made == [4, 5, 3, 5, 20, 4]
    assert list(cache.values) == [4]
    copy = pickle.loads(pickle.dumps(cache))
    assert not copy.values
    assert copy.get(2, make) == "xx"
