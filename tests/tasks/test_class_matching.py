"""Classes of data under the numbers of a model."""

import numpy as np
import pytest
import torch

from t2t.data.sources import ArraySource
from t2t.errors import UserError
from t2t.models.class_names import imagenet_classes, readable_names
from t2t.tasks.class_matching import match_classes, relabelled

ANIMALS = ("ant", "bee", "cat")


def test_names_count_and_not_their_order() -> None:
    numbers, notes = match_classes(("cat", "ant", "bee"), ANIMALS, "photos")
    assert numbers.tolist() == [2, 0, 1]
    assert notes == ()


def test_some_of_the_classes_will_do() -> None:
    numbers, notes = match_classes(("cat",), ANIMALS, "photos")
    assert numbers.tolist() == [2]
    assert notes == ("photos has 1 of the model's 3 classes.",)


def test_others_are_one_sentence() -> None:
    with pytest.raises(UserError, match="photos has classes that the model does not"):
        match_classes(("ant", "gnu"), ANIMALS, "photos")
    with pytest.raises(UserError, match="Several classes of photos are one class"):
        match_classes(("n02129604", "tiger"), imagenet_classes(), "photos")
    # Words are only shortened for WordNet's classes.
    with pytest.raises(UserError, match="'cat, striped'"):
        match_classes(("cat, striped",), ANIMALS, "photos")


def test_numeric_classes_are_matched_by_number_and_reported() -> None:
    numbers, notes = match_classes(("0", "1"), ANIMALS, "shards")
    assert numbers.tolist() == [0, 1]
    assert notes == ("The classes of shards are matched by number.",)
    assert match_classes(("0", "1", "2"), ANIMALS, "x")[0].tolist() == [0, 1, 2]
    numbers, notes = match_classes(ANIMALS, ("class 0", "class 1", "class 2"), "photos")
    assert numbers.tolist() == [0, 1, 2]
    assert "have no names" in notes[0]
    with pytest.raises(UserError, match="does not know"):
        match_classes(("0", "1", "2", "3"), ANIMALS, "shards")
    # Numbers that the model knows are names like any other.
    assert match_classes(("0", "1"), ("1", "0"), "digits")[0].tolist() == [1, 0]


def test_imagenet_goes_by_numbers_or_words() -> None:
    synsets = imagenet_classes()
    whole, notes = match_classes(readable_names(synsets), synsets, "parquet")
    assert whole.tolist() == list(range(1000))  # with both cranes in their place
    assert notes == ()
    some, _ = match_classes(("cassette player", "tench, a fish"), synsets, "imagenette")
    assert some.tolist() == [482, 0]
    with pytest.raises(UserError, match="'crane'"):
        match_classes(("crane",), synsets, "photos")


def test_a_source_gets_the_models_labels() -> None:
    images = torch.zeros(3, 1, 2, 2, dtype=torch.uint8)
    source = ArraySource(images, [0, 1, 0], ("cat", "ant"), "made")
    source.notes = ("something is skipped",)
    same = relabelled(source, np.array([2, 0]), ANIMALS)
    assert same.labels.tolist() == [2, 0, 2]
    assert same.classes == ANIMALS
    assert same.notes == source.notes
    assert same.name(1) == source.name(1)
    assert same.read(0) is not None
    assert same.is_in_memory
    assert len(same) == 3
    assert source.labels.tolist() == [0, 1, 0]
    assert source.classes == ("cat", "ant")
