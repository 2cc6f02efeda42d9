"""Files, folders and lists as images."""

import io
import os
from pathlib import Path

import pytest

from t2t.serving.inputs import find_images


def test_folders_are_searched_and_lists_are_read(tmp_path: Path) -> None:
    for name in ("b.png", "a.JPG", "notes.txt", ".hidden.png", "in/ner/c.webp"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "d.png").touch()
    (tmp_path / "in" / "round").symlink_to(tmp_path)
    (tmp_path / "empty").mkdir()
    names = [str(tmp_path / name) for name in ("a.JPG", "b.png", "in/ner/c.webp")]
    assert list(find_images([str(tmp_path)], io.StringIO())) == names
    # A file is taken at its word; a list may name folders too.
    listed = io.StringIO(f"{names[1]}\r\n\n{tmp_path}/in/ner\n")
    found = list(find_images(["notes.txt", "-", "x.png"], listed))
    assert found == ["notes.txt", names[1], names[2], "x.png"]


def test_a_folder_without_images_is_reported(tmp_path: Path) -> None:
    (told,) = find_images([str(tmp_path)], io.StringIO())
    assert str(told) == f"{tmp_path}: the folder holds no images"


def test_images_that_are_not_read_are_reported(tmp_path: Path) -> None:
    for name in ("1.heic", "2.png", "3.txt"):
        (tmp_path / name).touch()
    path, told = find_images([str(tmp_path)], io.StringIO())
    assert path == str(tmp_path / "2.png")
    assert str(told).startswith(f"{tmp_path}/1.heic: this format is not supported")


def test_a_list_as_find_prints_it() -> None:
    listed = io.StringIO("a.png\0with\na break.png\0b.png\n")
    assert list(find_images(["-"], listed)) == ["a.png", "with\na break.png", "b.png"]


def test_an_address_is_reported_as_not_readable() -> None:
    (told,) = find_images(["https://example.org/x.jpg"], io.StringIO())
    assert str(told).endswith("not read from URLs; download it first")


def test_a_folder_that_may_not_be_read_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").touch()
    scandir = os.scandir

    def refusing(place: str) -> object:
        if place.endswith("a"):
            raise PermissionError(13, "Permission denied", place)
        return scandir(place)

    monkeypatch.setattr(os, "scandir", refusing)
    path, told = find_images([str(tmp_path)], io.StringIO())
    assert path == str(tmp_path / "b" / "1.png")
    assert str(told) == f"{tmp_path / 'a'}: Permission denied"
