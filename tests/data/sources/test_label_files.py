"""Tables of paths and labels: each layout, and its commonest mistakes."""

import json
from pathlib import Path
from typing import Any

import pytest
from label_layouts import images, labels_by_name, numbered, table

from t2t.data.label_config import LabelConfig
from t2t.data.sources import Splits, open_source, open_splits
from t2t.data.sources.find_splits import find_splits
from t2t.data.sources.splitting import fold_of
from t2t.errors import UserError

LABELS = numbered(12, "cat", "dog", "owl")


def opened(
    path: Path, *files: object, pattern: str | None = None, **columns: object
) -> Splits:
    config = LabelConfig(
        files=tuple(map(str, files)),
        pattern=pattern,
        **columns,  # type: ignore[arg-type]
    )
    return open_splits(path, label_config=config)


def found(splits: Splits) -> dict[str, str]:
    return {**labels_by_name(splits.train), **labels_by_name(splits.val)}


def error(path: Path, *files: object, **columns: Any) -> str:
    with pytest.raises(UserError) as caught:
        opened(path, *files, **columns)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.endswith((".", "?"))
    return sentence


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A flat folder of images."""
    images(tmp_path / "photos", LABELS)
    return tmp_path / "photos"


# A table beside the images


@pytest.mark.parametrize("header", ["path,label", "file_name,class", "Image,Category"])
def test_a_csv_gives_the_labels(photos: Path, header: str) -> None:
    file = table(photos.parent / "mine.csv", header.split(","), *LABELS.items())
    splits = opened(photos, file)
    assert found(splits) == LABELS
    assert splits.train.classes == ("cat", "dog", "owl")
    assert len(splits.val) == 3  # one of each class


@pytest.mark.parametrize(
    "prefix", ["photos/", "./photos/", "{absolute}/", "photos\\", "", "{absolute}\\"]
)
def test_paths_are_relative_to_folder_or_table_or_absolute(
    photos: Path, prefix: str
) -> None:
    start = prefix.format(absolute=photos)
    rows = [(start + name, label) for name, label in LABELS.items()]
    file = table(photos.parent / "mine.csv", ("path", "label"), *rows)
    assert found(opened(photos, file)) == LABELS


def test_paths_may_lack_their_suffix(photos: Path) -> None:
    images(photos, ["99.PNG"])
    rows = [(Path(name).stem, label) for name, label in LABELS.items()]
    file = table(photos / "mine.csv", ("id", "breed"), *rows, ("99", "cat"))
    assert found(opened(photos, file)) == {**LABELS, "99.PNG": "cat"}


def test_the_table_alone_says_where_the_images_are(photos: Path) -> None:
    rows = [(f"photos/{name}", label) for name, label in LABELS.items()]
    file = table(photos.parent / "labels.csv", ("file", "label"), *rows)
    assert found(open_splits(file)) == LABELS
    inside = table(photos / "own.csv", ("file", "label"), *LABELS.items())
    assert found(open_splits(inside)) == LABELS


def test_images_in_a_folder_beside_the_table_are_found(photos: Path) -> None:
    file = table(photos.parent / "labels.csv", ("file", "label"), *LABELS.items())
    assert found(open_splits(file)) == LABELS


def test_columns_can_be_named(photos: Path) -> None:
    rows = [(7, name, "x", label) for name, label in LABELS.items()]
    file = table(photos / "a.csv", ("nr", "pic", "label", "art"), *rows)
    splits = opened(photos, file, path_column="pic", label_columns=("art",))
    assert found(splits) == LABELS


def test_unusual_columns_are_found_by_what_they_hold(photos: Path) -> None:
    file = table(photos / "a.csv", ("bild", "art"), *LABELS.items())
    assert found(opened(photos, file)) == LABELS


def test_a_table_needs_no_header(photos: Path) -> None:
    file = table(photos / "a.csv", *LABELS.items())
    assert found(opened(photos, file)) == LABELS


@pytest.mark.parametrize("delimiter", [";", "\t", ","])
def test_delimiters_are_found(photos: Path, delimiter: str) -> None:
    rows = [(name, f"{label}, small") for name, label in LABELS.items()]
    file = table(photos / "a.csv", ("file", "label"), *rows, delimiter=delimiter)
    assert set(found(opened(photos, file)).values()) == {
        "cat, small",
        "dog, small",
        "owl, small",
    }


def test_a_tsv_and_excels_first_line(photos: Path) -> None:
    file = table(photos / "a.tsv", ("file", "label"), *LABELS.items(), delimiter="\t")
    assert found(opened(photos, file)) == LABELS
    lines = [f"{name};{label}" for name, label in LABELS.items()]
    excel = photos / "a.csv"
    excel.write_text("\n".join(["sep=;", "file;label", *lines]))
    assert found(opened(photos, excel)) == LABELS


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "cp1252"])
def test_encodings_are_found(photos: Path, encoding: str) -> None:
    rows = [(name, label.replace("o", "ö")) for name, label in LABELS.items()]
    text = "\n".join(["file,label", *(",".join(row) for row in rows)])
    (photos / "a.csv").write_bytes(text.encode(encoding))
    splits = opened(photos, photos / "a.csv")
    assert found(splits) == dict(rows)
    told = "Windows-1252" in " ".join(splits.notes)
    assert told == (encoding == "cp1252")


def test_json_lines_lists_and_objects(photos: Path) -> None:
    records = [{"file_name": name, "label": label} for name, label in LABELS.items()]
    lines = photos / "a.jsonl"
    lines.write_text("\n".join(map(json.dumps, records)) + "\n")
    assert found(opened(photos, lines)) == LABELS
    whole = photos / "a.json"
    whole.write_text(json.dumps(records, indent=1))
    assert found(opened(photos, whole)) == LABELS
    for indent in (None, 1):
        whole.write_text(json.dumps(LABELS, indent=indent))
        assert found(opened(photos, whole)) == LABELS


# Its mistakes


def test_a_wrong_column(photos: Path) -> None:
    file = table(photos / "a.csv", ("file", "breed"), *LABELS.items())
    wrong = error(photos, file, label_columns=("bread",))
    assert "no column 'bread'" in wrong
    assert "Did you mean breed?" in wrong
    three = [(name, label, "x y") for name, label in LABELS.items()]
    table(file, ("file", "art", "note"), *three)
    wrong = error(photos, file)
    assert "columns file, art, note" in wrong
    assert "--label-columns label=" in wrong
    assert "two things" in error(photos, file, label_columns=("file",))


def test_missing_files_are_noted_or_refused(photos: Path) -> None:
    lost = {f"lost{n}.jpg": "cat" for n in range(3)}
    file = table(photos / "a.csv", ("file", "label"), *LABELS.items(), *lost.items())
    splits = opened(photos, file)
    assert found(splits) == LABELS
    note = next(note for note in splits.notes if "missing" in note)
    assert "3 of the 15 images" in note
    assert "lost0.jpg" in note
    more = {f"lost{n}.jpg": "cat" for n in range(20)}
    table(file, ("file", "label"), *LABELS.items(), *more.items())
    assert "Only 12 of the 32 images" in error(photos, file)
    table(file, ("file", "label"), *more.items())
    wrong = error(photos, file)
    assert "None of the 20 images" in wrong
    assert "--data" in wrong


def test_images_that_are_not_listed_are_noted(photos: Path) -> None:
    images(photos, ["other.jpg", "more.png"])
    file = table(photos / "a.csv", ("file", "label"), *LABELS.items())
    assert "2 images are not in" in " ".join(opened(photos, file).notes)


def test_no_such_table(photos: Path) -> None:
    table(photos / "labels.csv", ("file", "label"), *LABELS.items())
    wrong = error(photos, "lables.csv")
    assert "There is no file lables.csv" in wrong
    assert "labels.csv?" in wrong


def test_empty_labels_are_noted_or_refused(photos: Path) -> None:
    rows = [*LABELS.items()]
    file = table(photos / "a.csv", ("file", "label"), *rows[1:], ("1.jpg", " "))
    splits = opened(photos, file)
    assert "1.jpg" not in found(splits)
    assert "1 image of" in splits.notes[0]
    assert "1.jpg" in splits.notes[0]
    table(file, ("file", "label"), *((name, "") for name, _ in rows))
    wrong = error(photos, file)
    assert "12 of 12 images" in wrong
    assert "have no label" in wrong


def test_na_is_a_class_with_a_note(photos: Path) -> None:
    labels = {name: "NA" if label == "owl" else label for name, label in LABELS.items()}
    file = table(photos.parent / "mine.csv", ["path", "label"], *labels.items())
    splits = opened(photos, file)
    assert splits.train.classes == ("NA", "cat", "dog")
    assert found(splits) == labels
    num = [*labels.values()].count("NA")
    assert f"'NA' is a class, of {num} images of {file}" in splits.train.notes[0]


def test_one_image_with_different_labels(photos: Path) -> None:
    file = table(photos / "a.csv", ("file", "label"), *LABELS.items(), ("1.jpg", "cat"))
    wrong = error(photos, file)
    assert "1 image different labels" in wrong
    assert "1.jpg (dog, cat)" in wrong
    assert "--set task=multilabel" in wrong
    assert opened(photos, file, several=True).train.is_multilabel


def test_repeated_rows_are_one_image(photos: Path) -> None:
    file = table(photos / "a.csv", ("file", "label"), *LABELS.items(), ("1.jpg", "dog"))
    splits = opened(photos, file)
    assert len(splits.train) + len(splits.val) == 12
    assert "1 rows" not in splits.notes[0]
    assert "1.jpg" in splits.notes[0]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "is empty"),
        ("file,label\n", "a header and no images"),
        ("\n\n", "no rows"),
        ("file\n1.jpg\n", "column file"),
        ("file,label\n1.jpg,cat\n2.jpg\n", "Line 3"),
        ("file,label\n,cat\n1.jpg,dog\n", "Row 1"),
        ('file,label\n1.jpg,"cat\n' + "x" * 200_000, "not CSV"),
        ("file,label\n1.jpg,\0", "not a text file"),
    ],
)
def test_tables_that_are_none(photos: Path, text: str, part: str) -> None:
    (photos / "a.csv").write_text(text)
    assert part in error(photos, photos / "a.csv")


def test_other_files(photos: Path) -> None:
    (photos / "a.xlsx").write_bytes(b"PK")
    assert "workbook" in error(photos, photos / "a.xlsx")
    (photos / "a.docx").write_bytes(b"PK")
    assert "not a table" in error(photos, photos / "a.docx")
    (photos / "a.json").write_text('{"images": [], "annotations": []}')
    assert "boxes" in error(photos, photos / "a.json")
    (photos / "a.jsonl").write_text('{"file": "1.jpg", "label": "a"}\nnone\n')
    assert "Line 2" in error(photos, photos / "a.jsonl")
    (photos / "a.json").write_text("[1]")
    assert "Entry 1" in error(photos, photos / "a.json")


def test_a_column_that_holds_no_classes(tmp_path: Path) -> None:
    names = {f"{n}.jpg": f"{n}.5" for n in range(30)}
    images(tmp_path, names)
    file = table(tmp_path / "a.csv", ("file", "price"), *names.items())
    wrong = error(tmp_path, file)
    assert "30 different labels for 30 images" in wrong
    assert "'price'" in wrong


def test_labels_need_a_folder_of_images(photos: Path) -> None:
    file = table(photos / "a.csv", ("file", "label"), *LABELS.items())
    assert "does not exist" in error(photos / "none", file)
    assert "folder of images" in error(Path("digits"), file)
    both = {"pattern": "{label}_*"}
    with pytest.raises(UserError, match="--labels or --label-pattern"):
        LabelConfig(files=("a.csv",), **both)  # type: ignore[arg-type]


# A table that is found


@pytest.mark.parametrize("name", ["labels.csv", "metadata.csv", "Labels.tsv"])
def test_a_table_in_the_folder_is_found(photos: Path, name: str) -> None:
    delimiter = "\t" if name.endswith("tsv") else ","
    rows = LABELS.items()
    table(photos / name, ("file_name", "label"), *rows, delimiter=delimiter)
    splits = open_splits(photos)
    assert found(splits) == LABELS
    assert f"{photos / name} (path=file_name,label=label)" in splits.notes[0]


def test_a_table_beside_the_folder_is_found(photos: Path) -> None:
    table(photos.parent / "photos.csv", ("file", "label"), *LABELS.items())
    assert found(open_splits(photos)) == LABELS


def test_metadata_of_the_hub(tmp_path: Path) -> None:
    more = numbered(6, "cat", "dog")
    for split, labels in (("train", LABELS), ("test", more)):
        images(tmp_path / split, labels)
        lines = [{"file_name": n, "label": label} for n, label in labels.items()]
        text = "\n".join(map(json.dumps, lines))
        (tmp_path / split / "metadata.jsonl").write_text(text)
    splits = open_splits(tmp_path)
    assert labels_by_name(splits.train) == LABELS
    assert labels_by_name(splits.val) == more
    assert splits.val.classes == ("cat", "dog", "owl")
    assert splits.val.name(0).endswith("test/1.jpg")


def test_a_table_for_each_split(tmp_path: Path) -> None:
    images(tmp_path / "train", LABELS)
    images(tmp_path / "val", LABELS)
    images(tmp_path / "test", LABELS)
    table(tmp_path / "train.csv", ("id", "label"), *LABELS.items())
    table(tmp_path / "val.csv", ("id", "label"), *LABELS.items())
    table(tmp_path / "test.csv", ("id",), *((name,) for name in LABELS))
    splits = open_splits(tmp_path)
    assert labels_by_name(splits.train) == labels_by_name(splits.val) == LABELS
    assert "train/1.jpg" in splits.train.name(0)
    assert "val/1.jpg" in splits.val.name(0)


def test_what_was_found_opens_the_same_images(tmp_path: Path) -> None:
    images(tmp_path / "train", LABELS)
    images(tmp_path / "val", LABELS)
    table(tmp_path / "train.csv", ("id", "label"), *LABELS.items())
    table(tmp_path / "val.csv", ("file", "class"), *LABELS.items())
    found_config = find_splits(tmp_path).label_config
    assert found_config.files == (f"{tmp_path}/train.csv", f"{tmp_path}/val.csv")
    assert found_config.path_column is None
    again = open_splits(tmp_path, label_config=found_config)
    assert again.val.fingerprint() == open_splits(tmp_path).val.fingerprint()
    (tmp_path / "val.csv").unlink()
    known = find_splits(tmp_path).label_config
    assert (known.path_column, known.label_columns) == ("id", ("label",))
    assert (known.separator, known.several) == ("", False)


def test_two_tables_are_not_chosen_from(photos: Path) -> None:
    for name in ("labels.csv", "metadata.csv"):
        table(photos / name, ("file", "label"), *LABELS.items())
    wrong = error(photos)
    assert "several tables" in wrong
    assert "--labels" in wrong


def test_other_tables_are_left_alone(photos: Path) -> None:
    table(photos / "labels.csv", ("file", "label"), ("elsewhere.jpg", "cat"))
    table(photos / "metadata.csv", ("file", "date", "place"), ("1.jpg", 1, 2))
    assert "no class folders" in error(photos)


def test_the_only_table_of_a_flat_folder_is_named(photos: Path) -> None:
    tags = table(photos / "my tags.csv", ("file", "label"), *LABELS.items())
    assert f"(--labels '{tags}')" in error(photos)
    table(photos / "other.csv", ("file", "label"), *LABELS.items())
    assert "(--labels)" in error(photos)


def test_class_folders_stay_as_they_are(tmp_path: Path) -> None:
    images(tmp_path, [f"{kind}/{n}.jpg" for kind in ("cat", "dog") for n in range(3)])
    table(tmp_path / "metadata.csv", ("file_name", "date"), ("cat/1.jpg", 2023))
    splits = open_splits(tmp_path)
    assert splits.train.classes == ("cat", "dog")
    assert splits.notes == ()


# Splits


@pytest.mark.parametrize("words", [("train", "val"), ("Training", "Validation")])
def test_a_column_of_splits_is_obeyed(photos: Path, words: tuple[str, str]) -> None:
    rows = [(n, label, words[i % 2]) for i, (n, label) in enumerate(LABELS.items())]
    file = table(photos / "a.csv", ("file", "label", "split"), *rows)
    splits = opened(photos, file)
    assert labels_by_name(splits.val) == dict(rows_of(rows, 1))
    assert len(splits.train) == 6


def test_folds_are_of_the_training_images(photos: Path) -> None:
    words = ["train", "train", "val", "test"]
    rows = [(n, label, words[i % 4]) for i, (n, label) in enumerate(LABELS.items())]
    file = table(photos / "a.csv", ("file", "label", "split"), *rows)
    splits = opened(photos, file)
    trained = set(labels_by_name(splits.train))
    fold = fold_of(splits, 1, 2)
    assert set(found(fold)) == trained
    assert len(trained) == 6


def rows_of(rows: list[tuple[str, str, str]], odd: int) -> list[tuple[str, str]]:
    return [(name, label) for name, label, _ in rows[odd::2]]


def test_flags_and_test_images(photos: Path) -> None:
    rows = [(n, label, i % 2 == 0) for i, (n, label) in enumerate(LABELS.items())]
    file = table(photos / "a.csv", ("file", "label", "is_valid"), *rows)
    assert len(opened(photos, file).val) == 6
    words = ["train", "train", "test"]
    named = [(n, label, words[i // 4]) for i, (n, label) in enumerate(LABELS.items())]
    table(file, ("file", "label", "part"), *named)
    config = LabelConfig(files=(str(file),), split_column="part")
    assert len(open_source(photos, "test", label_config=config)) == 4
    assert len(open_source(photos, "val", label_config=config)) == 4


def test_mistakes_in_splits(photos: Path) -> None:
    rows = [(name, label, "") for name, label in LABELS.items()]
    file = photos / "a.csv"
    table(file, ("file", "label", "split"), *rows[1:], ("1.jpg", "dog", "train"))
    wrong = error(photos, file, split_column="split")
    assert "11 of 12 images" in wrong
    assert "no split" in wrong
    table(file, ("file", "label", "split"), *((*row[:2], "fold1") for row in rows))
    assert "'fold1'" in error(photos, file, split_column="split")
    known = [(*row[:2], "train") for row in rows]
    table(file, ("file", "label", "split"), *known, ("1.jpg", "dog", "val"))
    assert "in train and in val" in error(photos, file)


def test_a_label_never_seen_in_training(photos: Path) -> None:
    rows = [(n, label, "train") for n, label in LABELS.items()]
    rows[0] = ("1.jpg", "lynx", "val")
    file = table(photos / "a.csv", ("file", "label", "split"), *rows)
    wrong = error(photos, file)
    assert "no training image of the class 'lynx'" in wrong


# Mistakes that would otherwise go unseen


@pytest.mark.parametrize("cell", ["tset", "", "holdout"])
def test_a_wrong_word_does_not_discard_the_column_of_splits(
    photos: Path, cell: str
) -> None:
    rows = [(name, label, "train") for name, label in LABELS.items()]
    rows[3] = (*rows[3][:2], cell)
    file = table(photos.parent / "mine.csv", ("file", "label", "split"), *rows)
    wrong = error(photos, file)
    assert rows[3][0] in wrong
    assert "train, val or test" in wrong


def test_a_column_called_split_without_splits_is_named(photos: Path) -> None:
    rows = [(name, label, n % 5) for n, (name, label) in enumerate(LABELS.items())]
    file = table(photos.parent / "mine.csv", ("file", "label", "split"), *rows)
    assert any("'split' is not used" in note for note in opened(photos, file).notes)


@pytest.mark.parametrize("words", [("valid", "invalid"), ("maybe", "1")])
def test_is_valid_holds_1_or_0(photos: Path, words: tuple[str, str]) -> None:
    rows = [
        (name, label, words[n % 2]) for n, (name, label) in enumerate(LABELS.items())
    ]
    file = table(photos.parent / "mine.csv", ("file", "label", "is_valid"), *rows)
    wrong = error(photos, file)
    assert f"'is_valid' of {file} holds {words[0]!r}" in wrong
    assert "write 1" in wrong


def test_a_comma_in_a_label_without_quotes_is_no_end_of_it(photos: Path) -> None:
    file = photos.parent / "mine.csv"
    lines = [f"{name},{label}" for name, label in LABELS.items()]
    lines[4] += ", the second"
    file.write_text("\n".join(["file,label", *lines]))
    assert f"Line 6 of {file} needs 2 columns and has 3" in error(photos, file)
    lines[4] = lines[4].replace(", the second", ", ,")  # empty cells of a spreadsheet
    file.write_text("\n".join(["file,label", *lines]))
    assert found(opened(photos, file)) == LABELS


def test_a_quote_that_is_not_closed_takes_in_no_rows(photos: Path) -> None:
    file = photos.parent / "mine.csv"
    lines = [f"{name},{label}" for name, label in LABELS.items()]
    name, label = list(LABELS.items())[5]
    lines[5] = f'{name},"{label}'
    file.write_text("\n".join(["file,label", *lines]))
    wrong = error(photos, file)
    assert f"gives {name} a label of several lines" in wrong
    assert "quotes" in wrong


def test_an_image_with_two_spellings_is_one_image(photos: Path) -> None:
    name, label = next(iter(LABELS.items()))
    rows = [*LABELS.items(), (f"../photos/{name}", label), (Path(name).stem, label)]
    file = table(photos / "mine.csv", ("file", "label"), *rows)
    splits = opened(photos, file)
    assert len(splits.train) + len(splits.val) == len(LABELS)
    assert any("2 rows repeat" in note for note in splits.notes)
    rows[-1] = (Path(name).stem, "another")
    file = table(photos / "mine.csv", ("file", "label"), *rows)
    assert "different labels" in error(photos, file)


@pytest.mark.parametrize("start", [b"PK\x03\x04", b"\xd0\xcf\x11\xe0\xa1\xb1"])
def test_a_workbook_by_any_name_is_a_workbook(photos: Path, start: bytes) -> None:
    (photos / "labels.csv").write_bytes(start + b" binary")
    assert "is a workbook: save the sheet as CSV" in error(photos, "labels.csv")
    (photos / "labels.csv").rename(photos / "labels.xlsx")
    assert "is a workbook: save the sheet as CSV" in error(photos)
    assert "is a workbook: save the sheet as CSV" in error(photos / "labels.xlsx")


def test_a_table_in_a_flat_folder_says_why_it_is_not_used(photos: Path) -> None:
    some = list(LABELS.items())[:2]
    gone = [(f"gone{n}.jpg", "cat") for n in range(5)]
    table(photos / "labels.csv", ("file", "label"), *some, *gone)
    wrong = error(photos)
    assert "no class folders" in wrong
    assert "Only 2 of the 7 images" in wrong
    assert len(open_splits(photos, labels=False).train) > 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000, "is not JSON"),
        ("{}", "no images"),
        ("[[1, 2]]", "Entry 1 of"),
    ],
)
def test_json_of_another_kind_is_one_sentence(
    photos: Path, text: str, said: str
) -> None:
    file = photos.parent / "mine.json"
    file.write_text(text)
    wrong = error(photos, file)
    assert said in wrong
    assert wrong.count("write an object") < 2


# How much is too much


def test_half_of_the_images_may_be_missing_and_no_more(photos: Path) -> None:
    gone = [(f"gone{n}.jpg", "cat") for n in range(len(LABELS))]
    file = table(photos / "mine.csv", ("file", "label"), *LABELS.items(), *gone)
    assert found(opened(photos, file)) == LABELS
    gone.append(("one-more.jpg", "cat"))
    file = table(photos / "mine.csv", ("file", "label"), *LABELS.items(), *gone)
    assert "Only 12 of the 25 images" in error(photos, file)


def test_half_of_the_images_may_lack_a_label_and_no_more(photos: Path) -> None:
    images(photos, [f"more{n}.jpg" for n in range(13)])
    more = [(f"more{n}.jpg", "") for n in range(13)]
    file = table(photos / "mine.csv", ("file", "label"), *LABELS.items(), *more[:12])
    assert found(opened(photos, file)) == LABELS
    file = table(photos / "mine.csv", ("file", "label"), *LABELS.items(), *more)
    assert "13 of 25 images" in error(photos, file)


def test_a_validation_table_that_cannot_be_used_is_named(photos: Path) -> None:
    rows = list(LABELS.items())
    table(photos / "train.csv", ("file", "label"), *rows[:9])
    (photos / "val.csv").write_text(f"file,label\n{rows[9][0]}\n")
    notes = opened(photos).notes
    assert any(f"{photos / 'val.csv'} is not used: Line 2" in note for note in notes)
    table(photos / "val.csv", ("file", "label"), *rows[9:])
    splits = opened(photos)
    assert len(splits.val) == 3
    assert not any("is not used" in note for note in splits.notes)


def test_a_table_in_a_split_folder_says_why_it_is_not_used(tmp_path: Path) -> None:
    for split in ("train", "test"):
        images(tmp_path / split, LABELS)
        (tmp_path / split / "metadata.csv").write_text("file_name,label\n1.jpg\n")
    assert "Line 2 of" in error(tmp_path)


def test_a_link_to_no_table_is_not_suggested(photos: Path) -> None:
    (photos / "dead.csv").symlink_to("nowhere.csv")
    assert "Did you mean" not in error(photos, "dead.csv")


def test_unlisted_images_count_where_labels_do_not(photos: Path) -> None:
    listed = dict([*LABELS.items()][:6])
    table(photos / "labels.csv", ["path", "label"], *listed.items())
    splits = open_splits(photos, labels=False, unlisted=True)
    assert len(splits.train) + len(splits.val) == len(LABELS)
    assert not splits.train.is_labelled
    assert f"lists 6 of the {len(LABELS)} images" in splits.train.notes[0]
    assert len(open_splits(photos, labels=False).train) < 6
    # A table that lists all of them keeps its labels.
    table(photos / "labels.csv", ["path", "label"], *LABELS.items())
    splits = open_splits(photos, labels=False, unlisted=True)
    assert found(splits) == LABELS
    # One with splits says what is not to be trained on.
    rows = [(name, label, "train") for name, label in listed.items()]
    rows += [(name, label, "val") for name, label in [*LABELS.items()][6:12]]
    table(photos / "labels.csv", ["path", "label", "split"], *rows)
    splits = open_splits(photos, labels=False, unlisted=True)
    assert (len(splits.train), len(splits.val)) == (6, 6)
