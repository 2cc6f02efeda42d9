"""Launchers: started before their pool, and gone with the program."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from t2t.data.batches import LoaderOptions, open_batches
from t2t.data.sources import ArraySource
from t2t.data.streaming import launcher
from t2t.data.streaming.stream_batches import StreamBatches

pytestmark = pytest.mark.skipif(
    not hasattr(os, "memfd_create"), reason="processes need Linux"
)
START = (
    "import time; from t2t.data.streaming import launcher; "
    "launcher._SPARE.append(launcher.start_launcher()); "
    "print(launcher._SPARE[0].process.pid, flush=True); "
)


def ends(pid: int) -> bool:
    for _ in range(400):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":  # of a parent that is gone
            return True
        time.sleep(0.05)
    return False


@pytest.fixture
def spare(monkeypatch: pytest.MonkeyPatch) -> launcher.Launcher:
    started = launcher.start_launcher()
    monkeypatch.setattr(launcher, "_SPARE", [started])
    return started


def test_a_pool_takes_the_launcher_that_was_started_early(
    spare: launcher.Launcher,
) -> None:
    images = torch.arange(40, dtype=torch.uint8)[:, None, None, None]
    source = ArraySource(images.expand(40, 3, 8, 8), [0] * 40, ("all",), "grey")
    options = LoaderOptions(resident=False, num_workers=2, processes=True)
    batches = open_batches(
        source, batch_size=10, crops=(), device="cpu", loader_options=options
    )
    assert isinstance(batches, StreamBatches)
    for batch in batches.steps(0, 4):
        assert torch.equal(batch.images[:, 0, 0, 0].long(), batch.indices)
    (pool,) = batches.stream.idle_pools
    assert pool.launcher is spare.process
    assert launcher._SPARE == []


def test_a_launcher_that_has_died_is_not_taken(spare: launcher.Launcher) -> None:
    spare.process.kill()
    spare.process.wait()
    other = launcher.take_launcher()
    assert other.process.pid != spare.process.pid
    with other.process as process:
        other.connection.close()  # without a pool it ends by itself
        assert process.wait(30) == 0


def test_a_spare_launcher_ends_with_the_program() -> None:
    command = [sys.executable, "-c", START]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    assert ends(int(done.stdout))


def test_a_spare_launcher_ends_with_a_killed_program() -> None:
    # A process that holds all that the program had open lives on.
    forks = "import os; pid = os.fork(); pid or print(flush=True); time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", START + forks],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.stdout.readline()
        try:
            process.kill()
            process.wait()
            assert ends(pid)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_more_files_are_sent_than_fit_into_a_message() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, open(os.devnull) as file:
        number = 2 * launcher._FILES_AT_ONCE + 1
        launcher.send_files(ours, [file.fileno()] * number)
        files = launcher.receive_files(theirs, os.getppid())
        assert len({*files}) == number
        for each in files:
            assert os.fstat(each) == os.fstat(file.fileno())
            os.close(each)


def test_without_a_pool_no_files_are_received() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        ours.close()
        assert launcher.receive_files(theirs, os.getppid()) == []


@pytest.mark.parametrize(
    ("device", "visible", "expected"),
    [
        (None, None, True),
        ("cuda:0", "0,1", True),
        ("cpu", None, False),
        (None, "", False),
        (None, "-1", False),
    ],
)
def test_launchers_are_started_for_a_gpu_only(
    device: str | None,
    visible: str | None,
    expected: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launcher, "_DEVICES", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert not launcher.feeds_gpu(device)
    (tmp_path / "nvidia0").touch()
    assert launcher.feeds_gpu(device) == expected
    started: list[int] = []
    monkeypatch.setattr(launcher, "_SPARE", [])
    monkeypatch.setattr(launcher, "start_launcher", lambda: started.append(1))
    monkeypatch.setattr(launcher, "num_cores", lambda: 16)
    launcher.start_launchers_early(device)
    assert len(started) == 2 * expected
    monkeypatch.setattr(launcher, "_SPARE", [])
    monkeypatch.setattr(launcher, "num_cores", lambda: 2)
    launcher.start_launchers_early(device)
    assert len(started) == 2 * expected
    monkeypatch.setattr(launcher, "_SPARE", [])


def test_pytorch_is_not_imported_to_start_one() -> None:
    program = (
        "import sys, t2t.commands.train, t2t.data.streaming.launcher; "
        "sys.exit(bool({'torch', 'numpy'} & sys.modules.keys()))"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
