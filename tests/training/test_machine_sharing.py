"""Objects that the processes of a machine share: arrays are mapped, not copied."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
import torch

from t2t.data.shared_file import address_of
from t2t.data.sources import FileSource
from t2t.training import machine_sharing
from t2t.training.distributed import World
from t2t.training.machine_sharing import (
    made_once_per_machine,
    read,
    read_from,
    write,
)


def source() -> FileSource:
    names = [f"cat/{number}.jpg" for number in range(1000)]
    return FileSource(Path("photos"), names, np.arange(1000) % 3, ("a", "b", "c"))


def test_arrays_stay_in_the_file() -> None:
    before = source()
    file = write(before)
    assert file is not None
    after = read(file.fileno())
    file.close()
    assert after.name(999) == before.name(999)
    assert after.fingerprint() == before.fingerprint()
    for array in (after.labels, after.names.data, after.names.ends):
        assert not array.flags.owndata
        assert array.ctypes.data % 64 == 0
    after.labels[0] = 2  # a process may change its own copy


def test_an_object_that_cannot_be_sent_is_not_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG", "t2t")
    assert write(lambda: None) is None
    assert "cannot share the data (" in caplog.text
    assert "each reads it by itself." in caplog.text


def full_disk(num_bytes: int) -> IO[bytes]:
    return open("/dev/full", "w+b", buffering=4096)


def no_folder(num_bytes: int) -> IO[bytes]:
    raise FileNotFoundError(2, "No usable temporary directory found")


@pytest.mark.parametrize("nameless_file", [full_disk, no_folder])
def test_no_space_is_no_error(
    nameless_file: Callable[[int], IO[bytes]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG", "t2t")
    monkeypatch.setattr(machine_sharing, "nameless_file", nameless_file)
    assert write(source()) is None
    assert "cannot share the data ([Errno " in caplog.text


@pytest.mark.parametrize("free", [0, 1 << 40])
def test_no_folder_lists_the_file(
    free: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine_sharing, "free_memory", lambda: free)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    file = write(source())
    assert file is not None
    with file:
        assert os.fstat(file.fileno()).st_nlink == 0
        assert list(tmp_path.iterdir()) == []
        (after,) = read_from(address_of(file.fileno()))
    assert after.fingerprint() == source().fingerprint()


def test_another_file_of_that_number_is_not_read() -> None:
    file = write(source())
    assert file is not None
    with file:
        path, token = address_of(file.fileno())
        assert read_from((path, bytes(len(token)))) == []
    reader, writer = os.pipe()
    assert read_from((f"/proc/{os.getpid()}/fd/{reader}", token)) == []
    assert read_from(("/proc/0/fd/0", token)) == []
    os.close(reader)
    os.close(writer)


def test_a_process_that_cannot_open_the_file_makes_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gather(found: list[Any], own: object, group: object) -> None:
        found[:] = [("/proc/0/fd/0", bytes(16)), own]

    monkeypatch.setattr(machine_sharing.dist, "all_gather_object", gather)
    monkeypatch.setattr(machine_sharing, "barrier", lambda world: None)
    second = World(1, 2, torch.device("cpu"), local_rank=1, local_size=2)
    made = source()
    assert made_once_per_machine(second, lambda: made) is made


def test_one_process_makes_it_for_itself() -> None:
    alone = World(0, 1, torch.device("cpu"))
    made = source()
    assert made_once_per_machine(alone, lambda: made) is made
