"""Several labels per image: in one cell, in several rows, in columns of 0 and 1."""

import json
from pathlib import Path

import numpy as np
import pytest
from label_layouts import images, labels_by_name, table

from t2t.data.label_config import LabelConfig
from t2t.data.sources import Splits, holdout, open_splits
from t2t.data.sources.label_sets import (
    as_label_sets,
    class_counts,
    multi_hot,
    numbered_sets,
    rarest_classes,
)
from t2t.data.sources.label_values import find_separator, read_values
from t2t.errors import UserError

TAGS = [("cat",), ("cat", "indoor"), ("dog", "outdoor"), ("dog",), ("cat", "dog")]
LABELS = {f"{n}.jpg": TAGS[n % 5] for n in range(20)}
NAMES = {name: ";".join(sorted(tags)) for name, tags in LABELS.items()}


def opened(file: Path, **columns: object) -> Splits:
    config = LabelConfig(files=(str(file),), **columns)  # type: ignore[arg-type]
    return open_splits(file.parent, label_config=config)


def found(splits: Splits) -> dict[str, str]:
    return {**labels_by_name(splits.train), **labels_by_name(splits.val)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twenty images."""
    images(tmp_path, LABELS)
    return tmp_path


@pytest.mark.parametrize("separator", [";", "|", ", ", " ; "])
def test_labels_joined_in_a_cell(folder: Path, separator: str) -> None:
    rows = [(name, separator.join(tags)) for name, tags in LABELS.items()]
    splits = opened(table(folder / "a.csv", ("file", "tags"), *rows))
    assert found(splits) == NAMES
    assert splits.train.classes == ("cat", "dog", "indoor", "outdoor")
    assert splits.train.label_sets is splits.val.label_sets
    assert "several labels per image" in splits.description


def test_images_that_cannot_be_split_are_an_error(folder: Path) -> None:
    rows = [("1.jpg", "cat;dog"), ("2.jpg", "cat;indoor")]
    file = table(folder / "a.csv", ("file", "tags"), *rows)
    with pytest.raises(UserError, match="each the only one of its rarest class"):
        opened(file)


def test_json_lists(folder: Path) -> None:
    for text in (json.dumps, str):
        rows = [(name, text([*tags])) for name, tags in LABELS.items()]
        file = table(folder / "a.csv", ("file", "labels"), *rows)
        assert found(opened(file)) == NAMES
    lines = [{"file": name, "labels": [*tags]} for name, tags in LABELS.items()]
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert found(opened(folder / "a.jsonl")) == NAMES


def test_several_rows_of_an_image(folder: Path) -> None:
    rows = [(name, tag) for name, tags in LABELS.items() for tag in tags]
    file = table(folder / "a.csv", ("file", "label"), *rows)
    splits = opened(file)
    assert found(splits) == NAMES
    assert len(splits.train) + len(splits.val) == 20


def test_a_column_for_each_class(folder: Path) -> None:
    classes = ("outdoor", "cat", "dog", "indoor")
    rows = [
        (name, *(int(each in tags) for each in classes))
        for name, tags in {**LABELS, "0.jpg": ()}.items()
    ]
    file = table(folder / "a.csv", ("image", *classes), *rows)
    splits = opened(file)
    assert found(splits) == {**NAMES, "0.jpg": ""}
    assert splits.train.classes == ("cat", "dog", "indoor", "outdoor")
    two = opened(file, label_columns=("cat", "dog"))
    assert two.train.classes == ("cat", "dog")


def test_a_column_without_images_is_noted(folder: Path) -> None:
    rows = [(name, n % 2, 1 - n % 2, 0, 0) for n, name in enumerate(LABELS)]
    file = table(folder / "a.csv", ("file", "cat", "dog", "owl", "emu"), *rows)
    train = opened(file).train
    assert train.classes == ("cat", "dog")
    assert train.notes == (
        f"{file} has no 1 in 2 columns, which are not classes: 'owl', 'emu'.",
    )


def test_columns_of_which_one_is_1_are_one_label(folder: Path) -> None:
    rows = [(name, int(n % 2), int(not n % 2)) for n, name in enumerate(LABELS)]
    splits = opened(table(folder / "a.csv", ("image", "a", "b"), *rows))
    assert not splits.train.is_multilabel
    assert splits.train.classes == ("a", "b")


def test_single_labels_as_sets(folder: Path) -> None:
    rows = [(name, tags[0]) for name, tags in LABELS.items()]
    file = table(folder / "a.csv", ("image", "label"), *rows)
    assert not opened(file).train.is_multilabel
    splits = opened(file, several=True)
    assert splits.train.is_multilabel
    assert found(splits) == dict(rows)


# Mistakes


def test_few_repeated_rows_are_a_mistake(folder: Path) -> None:
    rows = [(name, tags[0]) for name, tags in LABELS.items()]
    file = table(folder / "a.csv", ("file", "label"), *rows, ("0.jpg", "dog"))
    with pytest.raises(UserError, match=r"0.jpg .cat, dog.*task=multilabel"):
        opened(file)


def test_a_tenth_of_repeated_images_is_no_mistake(folder: Path) -> None:
    rows = [(name, tags[0] if tags else "cat") for name, tags in LABELS.items()]
    num = -(-len(rows) // 10)
    rows += [(name, "another") for name, _ in rows[:num]]
    splits = opened(table(folder / "a.csv", ("file", "label"), *rows))
    assert splits.train.is_multilabel


def test_columns_that_hold_something_else(folder: Path) -> None:
    rows = [(name, 1, 0) for name in LABELS]
    rows[7] = ("7.jpg", 1, 2)
    file = table(folder / "a.csv", ("file", "a", "b"), *rows)
    with pytest.raises(UserError, match=r"'b' .* holds '2'"):
        opened(file, label_columns=("a", "b"))


def test_empty_cells_are_skipped_and_noted(folder: Path) -> None:
    rows = [(name, ";".join(tags)) for name, tags in LABELS.items()]
    file = table(folder / "a.csv", ("file", "tags"), ("0.jpg", ""), *rows[1:])
    splits = opened(file)
    assert "0.jpg" not in found(splits)
    assert "no label" in splits.notes[0]


def test_a_label_never_seen_in_training(folder: Path) -> None:
    rows = [(name, ";".join(tags), "train") for name, tags in LABELS.items()]
    rows[0] = ("0.jpg", "cat;lynx", "val")
    file = table(folder / "a.csv", ("file", "tags", "split"), *rows)
    with pytest.raises(UserError, match="no training image of the class 'lynx'"):
        opened(file)


# The parts


@pytest.mark.parametrize(
    ("texts", "column", "separator"),
    [
        (["a;b", "c"], "label", ";"),
        (["a|b", "c"], "label", "|"),
        (["tench, Tinca tinca", "shark, great white"], "label", ""),
        (["a,b", "a", "b"], "label", ","),
        (["haze primary", "haze", "primary"], "tags", " "),
        (["haze primary", "haze", "primary"], "label", ""),
        (["great dane", "pug"], "labels", ""),
        (["a, b", "b", "c, a"], "", ""),  # no fewer parts than texts
        (["a, b", "b", "c, a", "c"], "", ","),
    ],
)
def test_separators(texts: list[str], column: str, separator: str) -> None:
    assert find_separator(texts, column) == separator


def test_values() -> None:
    read = read_values(["a;b;a", "", "[]", '["a"]', ("x", "y")])
    assert read.classes == [("a", "b"), (), (), ("a",), ("x", "y")]
    assert read_values(["a;b"], separator="").classes == [("a;b",)]


def test_the_table_of_sets() -> None:
    numbers, sets = numbered_sets([[2, 0], [1], [0, 2], []])
    assert numbers.tolist() == [0, 1, 0, 2]
    assert sets.tolist() == [[0, 2], [1, -1], [-1, -1]]
    assert multi_hot(sets, 3).tolist() == [
        [True, False, True],
        [False, True, False],
        [False, False, False],
    ]
    assert class_counts(numbers, sets, 3).tolist() == [2, 1, 2]
    assert rarest_classes(numbers, sets, 3).tolist() == [0, 1, 0, 3]
    assert as_label_sets([]).shape == (0, 1)


def test_the_split_has_every_class(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rare = ["rare"] * 4 + ["once"] + [""] * 195
    rows = []
    for n in range(200):
        tags = [tag for tag in "abc" if random.random() < 0.4] + [rare[n]]
        rows.append((f"{n}.jpg", ";".join(filter(None, tags)) or "d"))
    images(tmp_path, [name for name, _ in rows])
    splits = opened(table(tmp_path / "a.csv", ("file", "tags"), *rows))
    assert len(splits.val) == 20

    def share(source: object, tag: str) -> float:
        values = [*labels_by_name(source).values()]  # type: ignore[arg-type]
        return sum(tag in each.split(";") for each in values) / len(values)

    assert share(splits.val, "rare") > 0
    assert share(splits.val, "once") == 0
    for tag in "abc":
        assert abs(share(splits.val, tag) - share(splits.train, tag)) < 0.15
    kept, held = holdout(splits.train, 30, seed=1)
    assert (len(kept), len(held)) == (150, 30)


def test_fingerprints_depend_on_the_sets(folder: Path) -> None:
    rows = [(name, ";".join(tags)) for name, tags in LABELS.items()]
    first = opened(table(folder / "a.csv", ("file", "tags"), *rows))
    same = opened(table(folder / "b.csv", ("file", "tags"), *rows))
    rows = [(name, tags.replace("indoor", "outdoor")) for name, tags in rows]
    other = opened(table(folder / "c.csv", ("file", "tags"), *rows))
    assert first.val.fingerprint() == same.val.fingerprint()
    assert first.train.fingerprint() != other.train.fingerprint()
