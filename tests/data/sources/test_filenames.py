"""Splits and patterns in the names of files."""

import pytest

from t2t.data.sources.filenames import expand_braces, num_missing, split_of


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
