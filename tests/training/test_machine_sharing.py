"""Objects that the processes of a machine share: arrays are mapped, not copied."""

from pathlib import Path

import numpy as np
import pytest

from t2t.data.sources import FileSource
from t2t.training import machine_sharing
from t2t.training.distributed import World
from t2t.training.machine_sharing import made_once_per_machine, read, write


def source() -> FileSource:
    names = [f"cat/{number}.jpg" for number in range(1000)]
    return FileSource(Path("photos"), names, np.arange(1000) % 3, ("a", "b", "c"))


def test_arrays_stay_in_the_file() -> None:
    before = source()
    name = write(before)
    assert name is not None
    after = read(Path(name))
    Path(name).unlink()
    assert after.name(999) == before.name(999)
    assert after.fingerprint() == before.fingerprint()
    for array in (after.labels, after.names.data, after.names.ends):
        assert not array.flags.owndata
        assert array.ctypes.data % 64 == 0
    after.labels[0] = 2  # a process may change its own copy


def test_an_object_that_cannot_be_sent_is_not_written() -> None:
    assert write(lambda: None) is None


def test_no_space_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine_sharing, "folder_for", lambda num_bytes: tmp_path)
    monkeypatch.setattr(machine_sharing, "open", full_disk, raising=False)
    assert write(source()) is None
    assert list(tmp_path.iterdir()) == []


def full_disk(*arguments: object, **options: object) -> None:
    raise OSError(28, "No space left on device")


def test_one_process_makes_it_for_itself() -> None:
    import torch

    alone = World(0, 1, torch.device("cpu"))
    made = source()
    assert made_once_per_machine(alone, lambda: made) is made
