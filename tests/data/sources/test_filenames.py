"""Splits and patterns in the names of files."""

import re

import pytest

from t2t.data.sources.filenames import expand_braces, num_missing, split_of
from t2t.errors import UserError


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a-{08..11}.tar", ["a-08.tar", "a-09.tar", "a-10.tar", "a-11.tar"]),
        ("{train,val}-{0..1}", ["train-0", "train-1", "val-0", "val-1"]),
        ("a-{0..1}-{2..3}", ["a-0-2", "a-0-3", "a-1-2", "a-1-3"]),
        ("{train-{0..1},val}.tar", ["train-0.tar", "train-1.tar", "val.tar"]),
        ("{a{0..1},b{2..3}}", ["a0", "a1", "b2", "b3"]),
        ("{a,{b,c}{0..1}}", ["a", "b0", "b1", "c0", "c1"]),
        ("{id}/{0..1}.tar", ["{id}/0.tar", "{id}/1.tar"]),
        ("{{0..1}}.tar", ["{0}.tar", "{1}.tar"]),
        ("plain.tar", ["plain.tar"]),
    ],
)
def test_braces(pattern, names):
    assert expand_braces(pattern) == names


@pytest.mark.parametrize(
    ("pattern", "sentence"),
    [
        ("{train-{0..3},val.tar", r"{train-{0..3},val.tar has a { without its }: "),
        ("a-{a..c}.tar", "has {a..c}, which is not a range of whole numbers: "),
        ("a-{0..4..2}.tar", "has {0..4..2}, which is not a range of whole numbers: "),
        ("{0..9999}{0..9999}", "is a pattern for 100,000,000 names: give 1,000,000"),
    ],
)
def test_wrong_braces_are_refused_with_an_example(pattern, sentence):
    with pytest.raises(UserError, match=re.escape(sentence)):
        expand_braces(pattern)


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
