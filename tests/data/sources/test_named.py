"""Data sets by name, built in and registered."""

import numpy as np
import pytest
import torch
from image_folders import array_source, make_folder

from t2t.data.decoding.decode import decode
from t2t.data.sources import (
    ArraySource,
    Source,
    open_source,
    open_splits,
    register_source,
)
from t2t.data.sources.named import NAMED, read_digits
from t2t.errors import UserError


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


def test_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    pixels, labels = read_digits()
    assert (pixels == load_digits().images).all()
    assert (labels == load_digits().target).all()


@pytest.fixture
def own_names():
    """Forgets what a test registers."""
    yield
    for name in NAMED.keys() - NAMED.built_in:
        del NAMED[name]


def test_a_users_source_has_a_name(own_names, tmp_path, monkeypatch):
    opened = []

    def open_mine(split):
        opened.append(split)
        return array_source([0] * 10 + [1] * 10)

    register_source("mine")(open_mine)
    splits = open_splits("mine")
    assert (len(splits.train), len(splits.val)) == (18, 2)
    assert splits.description.startswith("mine: 18 training images")
    del NAMED["mine"]
    register_source("mine", splits=("train", "test"))(open_mine)
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
    register_source("mine")(lambda split: ArraySource(images))
    assert not open_splits("mine", labels=False).train.is_labelled
    for open_it in (open_splits, lambda name: open_source(name, "all")):
        with pytest.raises(UserError, match="mine has no labels: add them, or train"):
            open_it("mine")


def test_names_and_splits_of_a_users_source_are_checked(own_names):
    with pytest.raises(UserError, match="'cifar10' is registered already"):
        register_source("cifar10")(lambda split: array_source([0, 1]))
    with pytest.raises(UserError, match="should be of train, val, test, all"):
        register_source("mine", splits=("dev",))(lambda split: array_source([0, 1]))
    register_source("wildlife")(lambda split: array_source([0, 1]))
    with pytest.raises(UserError, match=r"Did you mean wildlife\?"):
        open_splits("wildlif")


class Bare(Source):
    """A source with the fields that are given."""

    def __init__(self, **fields):
        vars(self).update(fields)

    def read(self, index): ...

    def name(self, index):
        return "one"


class Numbered(Bare):
    """Names images by numbers."""

    def name(self, index):
        return index


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "returns a NoneType, not a Source"),
        (Bare(labels=[0]), "returns a source without classes"),
        (Bare(classes=("a", "b")), "returns a source without labels"),
        (Bare(classes=("a", "b"), labels=[1, 2]), r"labels \[1, 2\]; .* from 0 to 1"),
        (Bare(classes=("a", "b"), labels=[-1, 0]), r"labels \[-1, 0\]"),
        (Bare(classes=("a", "b"), labels=["a", "b"]), r"labels \['a', 'b'\]"),
        (Bare(classes=("a", "b"), labels=[0.5, 1.0]), r"labels \[0.5, 1.0\]"),
        (Bare(classes=(), labels=[0, 1]), "from 0 to 0"),
        (Bare(classes="ab", labels=[0, 1]), "classes = 'ab'; give each class a string"),
        (Bare(classes=("a", "a"), labels=[0, 1]), r"classes = \('a', 'a'\)"),
        (Bare(classes=(0, 1), labels=[0, 1]), r"classes = \(0, 1\)"),
        (Numbered(classes=(), labels=[0]), r"whose name\(0\) is 0; return a string"),
    ],
)
def test_what_a_users_function_returns_is_checked(own_names, source, message):
    register_source("mine")(lambda split: source)
    with pytest.raises(UserError, match=f"data='mine' {message}|{message}"):
        open_source("mine", "all")


def test_a_method_with_other_arguments_is_named(own_names):
    class Other(Bare):
        def read(self): ...

    register_source("mine")(lambda split: Other(classes=(), labels=[0]))
    with pytest.raises(UserError, match=r"read of data=.mine. is called with"):
        open_source("mine", "all")


def test_lists_of_labels_and_classes_will_do(own_names):
    register_source("mine")(lambda split: Bare(classes=["a", "b"], labels=[0, 1] * 10))
    splits = open_splits("mine")
    assert splits.train.classes == ("a", "b")
    assert splits.train.labels.dtype == np.int64
    register_source("other")(lambda: None)
    with pytest.raises(UserError, match=r"is called with 1 argument \(str\), and"):
        open_splits("other")
