"""Data passed as Python objects: datasets, arrays, frames, and pairs of these."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas
import pytest
import torch
import torchvision
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from t2t.data.decoding.decode import decode
from t2t.data.sources import FileSource, Subset, in_memory, open_splits
from t2t.data.sources.in_memory import data_name
from t2t.errors import UserError

NAMES = ("cat", "dog", "owl")
PIXELS = np.random.default_rng(0).integers(0, 256, (36, 8, 8, 3)).astype(np.uint8)
LABELS = np.repeat(np.arange(3), 12)


class Pictures(Dataset):  # type: ignore[type-arg]
    """A Dataset as users write it."""

    def __init__(self, change: Callable[[Image.Image, int], Any] | None = None) -> None:
        self.change = change

    def __len__(self) -> int:
        return len(PIXELS)

    def __getitem__(self, index: int) -> Any:
        image, label = Image.fromarray(PIXELS[index]), int(LABELS[index])
        return (image, label) if self.change is None else self.change(image, label)


class Endless(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[Any]:
        yield from Pictures()


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same images as files, in the current folder."""
    monkeypatch.chdir(tmp_path)
    for number, (image, label) in enumerate(zip(PIXELS, LABELS, strict=True)):
        folder = Path("photos", NAMES[label])
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{number:02}.png")
    return Path("photos")


def frame_of(photos: Path) -> pandas.DataFrame:
    paths = sorted(map(str, photos.rglob("*.png")), key=lambda path: path[-6:])
    return pandas.DataFrame({"path": paths, "label": [NAMES[n] for n in LABELS]})


def hugging_face() -> Any:
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=list(NAMES))}
    )
    images = [Image.fromarray(image) for image in PIXELS]
    rows = {"image": images, "label": LABELS.tolist()}
    return datasets.Dataset.from_dict(rows, features=features)


def as_tensor() -> torch.Tensor:
    return torch.from_numpy(PIXELS).permute(0, 3, 1, 2)


OBJECTS: dict[str, Callable[[], Any]] = {
    "arrays": lambda: (PIXELS, LABELS),
    "tensors": lambda: (as_tensor(), torch.from_numpy(LABELS)),
    "names as labels": lambda: (PIXELS, [NAMES[number] for number in LABELS]),
    "list of images": lambda: ([Image.fromarray(i) for i in PIXELS], LABELS.tolist()),
    "dataset": Pictures,
    "dataset of dicts": lambda: Pictures(lambda i, n: {"image": i, "label": n}),
    "dataset of tensors": lambda: TensorDataset(as_tensor(), torch.from_numpy(LABELS)),
    "hugging face": hugging_face,
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_every_kind_has_the_same_images_and_labels(kind: str) -> None:
    name = data_name(OBJECTS[kind]())
    assert name is not None
    assert name.startswith("memory:")
    splits = open_splits(name)
    held = [part for part in (splits.train, splits.val) if isinstance(part, Subset)]
    assert [len(part) for part in held] == [32, 4]
    for part in held:
        assert len(part.classes) == 3
        for index, place in enumerate(part.indices.tolist()):
            assert part.labels[index] == LABELS[place]
            pixels = decode(part.read(index)).permute(1, 2, 0).numpy()
            np.testing.assert_array_equal(pixels, PIXELS[place])
            assert part.name(index).endswith(f"[{place}]")
    assert data_name(OBJECTS[kind]()) == name


def test_a_pair_is_for_training_and_validation() -> None:
    halves = ((PIXELS[::2], LABELS[::2]), (PIXELS[1::3], LABELS[1::3]))
    for data in (halves, dict(zip(("train", "validation"), halves, strict=True))):
        splits = open_splits(data_name(data))  # type: ignore[arg-type]
        assert (len(splits.train), len(splits.val)) == (18, 12)
        assert "evaluated on its val split" in splits.description
    generator = torch.Generator().manual_seed(0)
    parts = torch.utils.data.random_split(Pictures(), [30, 6], generator=generator)
    splits = open_splits(data_name(tuple(parts)))  # type: ignore[arg-type]
    assert (len(splits.train), len(splits.val)) == (30, 6)
    both = hugging_face().train_test_split(0.25, seed=0)
    assert len(open_splits(data_name(both)).val) == 9  # type: ignore[arg-type]


def test_a_validation_set_may_lack_a_class() -> None:
    names = [NAMES[number] for number in LABELS]
    data = ((PIXELS, names), (PIXELS[12:], names[12:]))
    splits = open_splits(data_name(data))  # type: ignore[arg-type]
    assert splits.val.classes == NAMES
    assert splits.val.labels.tolist() == LABELS[12:].tolist()


def test_files_keep_their_paths(photos: Path) -> None:
    folder = torchvision.datasets.ImageFolder(str(photos))
    splits = open_splits(data_name(folder))  # type: ignore[arg-type]
    assert isinstance(splits.val, Subset)
    assert isinstance(splits.val.source, FileSource)
    assert Path(splits.val.name(0)).is_file()
    part = torch.utils.data.Subset(folder, range(0, 36, 2))
    assert len(open_splits(data_name(part)).train) == 15  # type: ignore[arg-type]
    frame = frame_of(photos)
    by_lists = open_splits(data_name((frame["path"], frame["label"])))  # type: ignore[arg-type]
    assert Path(by_lists.train.name(0)).is_file()


def test_a_frame_has_paths_labels_and_perhaps_splits(photos: Path) -> None:
    frame = frame_of(photos)
    splits = open_splits(data_name(frame))  # type: ignore[arg-type]
    assert splits.train.classes == NAMES
    assert Path(splits.train.name(0)).parent.name == NAMES[splits.train.labels[0]]
    frame["split"] = ["train", "train", "val"] * 12
    splits = open_splits(data_name(frame))  # type: ignore[arg-type]
    assert (len(splits.train), len(splits.val)) == (24, 12)
    both = (frame_of(photos)[::2], frame_of(photos)[1::2])
    assert len(open_splits(data_name(both)).val) == 18  # type: ignore[arg-type]
    with pytest.raises(UserError, match="is all of the data: give data=frame"):
        data_name((frame, frame))


def test_other_data_has_another_name() -> None:
    names = {
        data_name((PIXELS, LABELS)),
        data_name((255 - PIXELS, LABELS)),
        data_name((PIXELS, LABELS[::-1])),
        data_name((PIXELS[:30], LABELS[:30])),
    }
    assert len(names) == 4
    assert data_name("photos") == "photos"
    assert data_name(Path("photos")) == "photos"
    assert data_name(None) is None


def test_data_that_was_not_passed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    name = data_name((PIXELS, LABELS))
    monkeypatch.setattr(in_memory, "_KEPT", {})
    with pytest.raises(UserError, match="pass the same object again, as data="):
        open_splits(name)  # type: ignore[arg-type]


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "float arrays": (lambda: (PIXELS / 255, LABELS), "give uint8 values from 0 to 255"),
    "float images": (
        lambda: Pictures(lambda image, label: (torch.rand(3, 8, 8), label)),
        "a float32 tensor of 3 × 8 × 8: give Pillow images or uint8 pixels. Remove ToT",
    ),
    "float labels": (lambda: (PIXELS, LABELS + 0.5), "has the label 0.5"),
    "one-hot": (lambda: (PIXELS, np.eye(3)[LABELS]), "one class number or name for"),
    "other lengths": (lambda: (PIXELS, LABELS[1:]), "36 images and 35 labels"),
    "channels first": (lambda: (np.moveaxis(PIXELS, -1, 1), LABELS), "give 1, 3 or 4"),
    "no images": (lambda: (PIXELS[:0], LABELS[:0]), "are uint8 array of 0 × 8 × 8"),
    "iterable": (Endless, "which can only be iterated"),
    "loader": (lambda: DataLoader(Pictures()), "give its images, data=loader.dataset"),
    "user's error": (
        lambda: Pictures(lambda image, label: 1 / (label - 1) and (image, label)),
        r"Item 12 of the Pictures cannot be read (ZeroDivisionError",
    ),
    "other keys": (
        lambda: Pictures(lambda image, label: {"x": image, "y": label}),
        "has the keys x, y: call them image and label",
    ),
    "one value": (lambda: Pictures(lambda image, label: (image,)), "has 1 values"),
    "other parts": (lambda: {"a": (PIXELS, LABELS)}, "has the parts a: name them tr"),
    "number": (lambda: 5, "data is a int: give a path, a torch Dataset"),
    "no labels": (lambda: (PIXELS, None), "give images without labels alone"),
    "missing column": (
        lambda: pandas.DataFrame({"y": [1, 2]}),
        "has the columns y: call them path, label and",
    ),
    "missing folder": (
        lambda: pandas.DataFrame({"path": ["no/1.png"], "label": [1]}),
        "there is no folder no: paths are relative to the current folder",
    ),
    "missing file": (lambda: (["no.png"], [1]), "no.png, which does not exist"),
    "empty frame": (lambda: pandas.DataFrame({"path": []}), "has no rows"),
    "streamed": (lambda: hugging_face().to_iterable_dataset(), "streaming=False"),
    "no image column": (
        lambda: hugging_face().remove_columns("image"),
        "none is the image: call one image",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_data_is_one_sentence(kind: str) -> None:
    make, sentence = WRONG[kind]
    with pytest.raises(UserError, match=re.escape(sentence)) as raised:
        data_name(make())
    assert "\n" not in str(raised.value)


def test_labels_that_a_dataset_lists_must_be_its_own() -> None:
    listed, wrong = Pictures(), Pictures()
    listed.targets = LABELS.tolist()  # type: ignore[attr-defined]
    wrong.targets = (2 - LABELS).tolist()  # type: ignore[attr-defined]
    listed.classes = list(NAMES)  # type: ignore[attr-defined]
    for data in (listed, wrong):
        whole = open_splits(data_name(data)).train  # type: ignore[arg-type]
        assert isinstance(whole, Subset)
        assert whole.labels.tolist() == LABELS[whole.indices].tolist()
    assert open_splits(data_name(listed)).train.classes == NAMES  # type: ignore[arg-type]


@pytest.mark.parametrize("missing", [None, float("nan"), "no", ""])
def test_columns_of_0_and_1_in_a_frame_are_read_as_in_a_file(
    photos: Path, missing: object
) -> None:
    frame = frame_of(photos)[["path"]]
    frame["cat"] = [1, 0, missing] * (len(frame) // 3)
    frame["dog"] = [1, 1, 0] * (len(frame) // 3)
    splits = open_splits(data_name(frame))  # type: ignore[arg-type]
    assert splits.train.classes == ("cat", "dog")
    assert splits.train.is_multilabel


def test_negative_labels_alone_are_no_classes() -> None:
    images = np.zeros((12, 8, 8, 3), np.uint8)
    with pytest.raises(UserError, match="number the classes from 0"):
        open_splits(data_name((images, [-1] * 12)))
