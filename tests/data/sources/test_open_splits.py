"""Folders and other paths: how data is found, split and refused."""

import os
from pathlib import Path

import numpy as np
import pytest
from image_folders import make_folder, write_image

from t2t.data.decoding.decode import DamagedImage, decode
from t2t.data.sources import holdout, open_source, open_splits
from t2t.data.sources.find_splits import find_splits
from t2t.data.sources.labels import folder_meant
from t2t.errors import UserError


def test_train_and_val_folders(tmp_path):
    make_folder(tmp_path / "train", {"cat": 3, "ant": 2})
    make_folder(tmp_path / "val", {"cat": 1, "ant": 1})
    splits = open_splits(tmp_path)
    assert splits.train.classes == splits.val.classes == ("ant", "cat")
    assert splits.train.labels.tolist() == [0, 0, 1, 1, 1]
    assert splits.train.labels.dtype == np.int64
    assert splits.train.name(4) == str(tmp_path / "train" / "cat" / "002.png")
    assert decode(splits.train.read(4)).unique().tolist() == [2]
    assert "5 training images, 2 validation images" in splits.description


def test_a_folder_with_braces_in_its_name_is_a_folder(tmp_path):
    folder = tmp_path / "photos {2024,2025}"
    make_folder(folder, {"cat": 3, "ant": 2})
    splits = open_splits(folder)
    assert len(splits.train) + len(splits.val) == 5
    with pytest.raises(UserError, match="2023"):
        open_splits(tmp_path / "photos {2023,2025}")


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


def test_a_broken_link_to_a_class_is_reported(tmp_path):
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


def test_suffixes_are_listed_with_the_commonest_first(tmp_path):
    make_folder(tmp_path, {"a": 2})
    (tmp_path / "b").mkdir()
    with pytest.raises(UserError, match=r"add some \(\.jpg, \.png, \.jpeg, "):
        open_splits(tmp_path)


def test_class_folders_one_too_deep_are_reported(tmp_path):
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


def test_a_flat_folder_is_data_for_tasks_without_labels(tmp_path):
    for number in range(20):
        write_image(tmp_path / f"{number:02d}.png", number)
    with pytest.raises(UserError, match="Pre-training needs no labels"):
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
