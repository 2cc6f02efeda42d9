"""Files, folders and lists as images."""

import io
from pathlib import Path

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


def test_a_folder_without_images_is_told(tmp_path: Path) -> None:
    (told,) = find_images([str(tmp_path)], io.StringIO())
    assert str(told) == f"{tmp_path}: the folder holds no images"
