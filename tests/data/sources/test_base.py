"""Sources that need no file format, and parts of sources."""

import errno
import io
import os
import pickle

import numpy as np
import pytest
import torch
from image_folders import array_source, make_folder
from PIL import Image

from t2t.data.decoding.decode import DamagedImage
from t2t.data.sources import (
    ArraySource,
    Source,
    Subset,
    open_source,
    open_splits,
)
from t2t.data.sources.base import FileSource
from t2t.errors import LocalError


def test_some_images_of_a_source():
    source = array_source([0, 1, 2, 0, 1, 2])
    part = Subset(source, [5, 0])
    assert part.labels.tolist() == [2, 0]
    assert part.read(0).item() == 5
    assert part.name(1) == "array[0]"
    assert part.is_in_memory
    with pytest.raises(IndexError, match="outside"):
        Subset(source, [6])


def test_different_images_have_different_fingerprints(tmp_path):
    def fingerprint():
        return open_splits(tmp_path).train.fingerprint()

    make_folder(tmp_path, {"a": 4, "b": 4})
    first = fingerprint()
    assert fingerprint() == first
    (tmp_path / "a/000.png").rename(tmp_path / "a/x.png")
    assert fingerprint() != first
    (tmp_path / "a/x.png").rename(tmp_path / "a/000.png")
    assert fingerprint() == first
    source = array_source([0, 1, 1, 0])
    assert source.fingerprint() != array_source([0, 1, 0, 1]).fingerprint()
    parts = [Subset(source, part).fingerprint() for part in ([0, 1], [3, 2])]
    assert parts[0] != parts[1]


def test_an_array_needs_no_labels():
    images = torch.arange(4, dtype=torch.uint8).view(-1, 1, 1, 1)
    source = ArraySource(images)
    assert not source.is_labelled
    assert source.labels.tolist() == [0] * 4
    assert source.fingerprint() != ArraySource(images + 1).fingerprint()


def test_different_names_have_different_fingerprints():
    class Named(Source):
        def __init__(self, *names):
            self.names = names
            self.drop_labels()

        def __len__(self):
            return len(self.names)

        def read(self, index):
            return b""

        def name(self, index):
            return self.names[index]

    assert Named("a", "b").fingerprint() == Named("a", "b").fingerprint()
    assert Named("a", "b").fingerprint() != Named("a", "c").fingerprint()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (errno.ENFILE, "was not read .*file itself: allow more open files"),
        (errno.ENOMEM, "was not read .*file itself: leave more memory free"),
        (errno.ESTALE, "was not read .*file itself: check the disk"),
        (errno.EIO, "Input/output error"),
        (errno.EACCES, "Permission denied"),
        (None, "was not read .*file itself: leave more memory free"),
    ],
)
def test_no_image_is_damaged_for_what_the_machine_lacks(
    tmp_path, monkeypatch, error, told
):
    def refuse(path):
        raise OSError(error, os.strerror(error), path) if error else MemoryError

    source = FileSource(tmp_path, ["a.png"], np.zeros(1, np.int64), ("all",))
    monkeypatch.setattr("t2t.data.sources.base.read_whole", refuse)
    kind = LocalError if "was not read" in told else DamagedImage
    with pytest.raises(kind, match=rf"a\.png:? {told}"):
        source.read(0)


def test_an_image_that_vanished_is_named(tmp_path):
    make_folder(tmp_path, {"a": 2, "b": 2})
    source = open_source(tmp_path, "all")
    (tmp_path / "a" / "001.png").unlink()
    with pytest.raises(DamagedImage, match=r"a/001\.png: No such file"):
        source.read(1)


def test_a_source_travels_to_another_process(tmp_path):
    make_folder(tmp_path, {"a": 2, "b": 2})
    source = open_splits(tmp_path).train
    copy = pickle.loads(pickle.dumps(source))
    assert [copy.name(n) for n in range(2)] == [source.name(n) for n in range(2)]
    assert copy.read(1) == source.read(1)


def test_encoded_bytes_come_out_as_they_are(tmp_path):
    make_folder(tmp_path, {"a": 1, "b": 1})
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "PNG")
    assert open_source(tmp_path, "all").read(0) == buffer.getvalue()


def test_a_pipe_among_the_images_is_named_and_not_waited_for(tmp_path):
    make_folder(tmp_path, {"cat": 2, "dog": 2})
    os.mkfifo(tmp_path / "cat" / "pipe.png")
    source = open_source(tmp_path, "all")
    assert source.name(2) == str(tmp_path / "cat" / "pipe.png")
    with pytest.raises(DamagedImage, match=r"pipe.png: not a regular file"):
        source.read(2)
