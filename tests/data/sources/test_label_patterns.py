"""Labels in file names and in folders, and their commonest mistakes."""

from pathlib import Path

import pytest
from label_layouts import images, labels_by_name

from t2t.data.label_config import LabelConfig
from t2t.data.sources import Splits, open_splits
from t2t.data.sources.label_patterns import compile_pattern, suggest_pattern
from t2t.errors import UserError


def opened(path: Path, pattern: str) -> Splits:
    return open_splits(path, label_config=LabelConfig(pattern=pattern))


def found(splits: Splits) -> dict[str, str]:
    return {**labels_by_name(splits.train), **labels_by_name(splits.val)}


@pytest.mark.parametrize(
    ("pattern", "path", "label"),
    [
        ("{label}_*.jpg", "Abyssinian_12.jpg", "Abyssinian"),
        ("{label}_*.jpg", "great_pyrenees_12.JPG", "great_pyrenees"),
        ("{label}_*", "2023/cat_1.png", "cat"),
        ("{label}_*_*.jpg", "cat_2023_01.jpg", "cat"),
        ("*_{label}.jpg", "12_great_pyrenees.jpg", "great_pyrenees"),
        ("{label}.#.jpg", "cat.12.jpg", "cat"),
        ("{label}#.jpg", "cat12.jpg", "cat"),
        ("{label} (#).jpg", "cat (3).jpg", "cat"),
        ("?_{label}_*.jpg", "a_cat_1.jpg", "cat"),
        ("{label}/*", "2023/cat/1.jpg", "cat"),
        ("{label}/*/*", "site1/cat/morning/1.jpg", "cat"),
        ("{label}-*/*", "a/cat-2023/1.jpg", "cat"),
        ("{label}_*.jpg", "cat.jpg", None),
        ("{label}_*.jpg", "cat_1.png", None),
        ("{label}/*", "1.jpg", None),
    ],
)
def test_patterns(pattern: str, path: str, label: str | None) -> None:
    match = compile_pattern(pattern).fullmatch(path)
    assert (match and match["label"]) == label


def test_labels_in_file_names(tmp_path: Path) -> None:
    names = {f"{kind}_{n}.jpg": kind for kind in ("cat", "dog") for n in range(5)}
    images(tmp_path, names)
    splits = opened(tmp_path, "{label}_*.jpg")
    assert found(splits) == names
    assert splits.train.classes == ("cat", "dog")
    assert len(splits.val) == 2


def test_folders_at_any_depth(tmp_path: Path) -> None:
    names = [f"{year}/{kind}/{kind}{year}.jpg" for year in (1, 2, 3) for kind in "ab"]
    images(tmp_path, names)
    splits = opened(tmp_path, "{label}/*")
    assert found(splits) == {f"{k}{y}.jpg": k for y in (1, 2, 3) for k in "ab"}


def test_train_and_val_folders_are_splits(tmp_path: Path) -> None:
    images(tmp_path, [f"train/{kind}_{n}.jpg" for kind in "ab" for n in range(3)])
    images(tmp_path, [f"valid/{kind}_9.jpg" for kind in "ab"])
    splits = opened(tmp_path, "{label}_*")
    assert labels_by_name(splits.val) == {"a_9.jpg": "a", "b_9.jpg": "b"}
    assert len(splits.train) == 6


@pytest.mark.parametrize(
    ("names", "pattern", "classes"),
    [
        (["Abyssinian_1.jpg", "great_dane_2.jpg"], "{label}_#.jpg", "Abyssinian"),
        (["cat.1.jpg", "dog.1.jpg"], "{label}.#.jpg", "cat"),
        (["cat1.png", "dog1.png"], "{label}#.png", "cat"),
        (["cat (1).jpg", "dog (1).jpg"], "{label} (#).jpg", "cat"),
        (["12_cat.jpg", "13_dog.jpg"], "#_{label}.jpg", "cat"),
        (["cat_ab.jpg", "dog_cd.png"], "{label}_*.*", "cat"),
        (["cat_2023_1.jpg", "dog_2024_1.jpg"], "{label}_#_#.jpg", "cat"),
    ],
)
def test_the_error_suggests_the_pattern(
    tmp_path: Path, names: list[str], pattern: str, classes: str
) -> None:
    # Several images of each class, as the numbers count up.
    several = [name.replace("1", digit) for name in names for digit in "135"]
    several += [name.replace("2", digit) for name in names for digit in "68"]
    several += [
        name.replace("ab", part).replace("cd", part)
        for name in names
        for part in ("ef", "gh")
    ]
    images(tmp_path, several)
    with pytest.raises(UserError, match="no class folders") as caught:
        open_splits(tmp_path)
    assert f"--label-pattern '{pattern}'" in str(caught.value)
    assert f"2 classes ({classes}" in str(caught.value)
    assert opened(tmp_path, pattern).train.classes[0] == classes


@pytest.mark.parametrize(
    "names",
    [
        ["IMG_0001.jpg", "IMG_0002.jpg", "DSC_0003.jpg", "DSC_0004.jpg"],
        ["1_1.jpg", "1_2.jpg", "2_1.jpg", "2_2.jpg"],
        ["a.jpg", "b.jpg", "c.jpg"],
        ["holiday_1.jpg", "holiday_2.jpg"],
        ["beach_1.jpg", "hill_2.jpg", "lake_3.jpg", "park_4.jpg"],  # names of images
        ["beach_1.jpg", "beach_2.jpg", "hill_3.jpg"],  # half of them
    ],
)
def test_names_without_labels_suggest_nothing(names: list[str]) -> None:
    assert suggest_pattern(names) is None


def test_a_pattern_without_a_label(tmp_path: Path) -> None:
    images(tmp_path, ["cat_1.jpg"])
    for pattern in ("*_*.jpg", "{label}_{label}.jpg", "{class}_*.jpg"):
        with pytest.raises(UserError, match=r"times: write {label} where"):
            opened(tmp_path, pattern)


def test_a_pattern_that_fits_few(tmp_path: Path) -> None:
    images(tmp_path, ["cat_1.jpg", "dog-1.jpg", "dog-2.jpg", "cat_2.jpg", "owl.jpg"])
    with pytest.raises(UserError, match=r"fits 2 of the 5 images.*dog-1.jpg"):
        opened(tmp_path, "{label}_*.jpg")
    with pytest.raises(UserError, match="fits 0 of the 5 images"):
        opened(tmp_path, "{label}__*")


def test_a_pattern_that_fits_most(tmp_path: Path) -> None:
    images(tmp_path, ["cat_1.jpg", "cat_2.jpg", "dog_1.jpg", "dog_2.jpg", "owl.jpg"])
    splits = opened(tmp_path, "{label}_*.jpg")
    assert len(splits.train) + len(splits.val) == 4
    assert "1 image is skipped, such as owl.jpg" in splits.notes[0]


def test_class_folders_in_folders_are_noted(tmp_path: Path) -> None:
    images(
        tmp_path,
        [f"{y}/{k}/{n}.jpg" for y in (2023, 2024) for k in "ab" for n in range(3)],
    )
    splits = open_splits(tmp_path)
    assert splits.train.classes == ("2023", "2024")
    assert "--label-pattern '{label}/*'" in splits.notes[0]
