"""The script for Slurm queues a run again that was stopped, and none that failed."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "docs" / "slurm.sh"
STOPPED = "Stopped at step 25 of 264 with a checkpoint; run the same command to resume."


@pytest.fixture
def job(tmp_path: Path) -> dict[str, str]:
    """The environment of a job on a machine whose Slurm only takes notes."""
    commands = {
        "srun": f'eval "$TRAINS"; touch "{tmp_path}/ready"; eval "$WAITS"; exit 1',
        "scancel": f'kill -TERM "$(cat "{tmp_path}/srun.pid")"',
        "scontrol": f'[ "$1" = show ] && echo one || echo "$*" > "{tmp_path}/queued"',
    }
    for name, does in commands.items():
        file = tmp_path / name
        file.write_text(f'#!/bin/bash\necho $$ > "{tmp_path}/{name}.pid"\n{does}\n')
        file.chmod(0o755)
    (tmp_path / "run").mkdir()
    return {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "one",
        "SLURM_JOB_NUM_NODES": "1",
        "TRAINS": "true",
        "WAITS": "true",
    }


def start(tmp_path: Path, job: dict[str, str]) -> "subprocess.Popen[bytes]":
    command = ["bash", str(SCRIPT), str(tmp_path / "run"), "digits"]
    return subprocess.Popen(command, env=job)


def was_queued(tmp_path: Path) -> bool:
    queued = tmp_path / "queued"
    return queued.exists() and queued.read_text() == "requeue 7\n"


@pytest.mark.parametrize(
    ("told", "queued"), [(STOPPED, True), ("CUDA error: illegal memory access", False)]
)
def test_a_preempted_run_is_queued_again(
    tmp_path: Path, job: dict[str, str], told: str, queued: bool
) -> None:
    job["TRAINS"] = f'echo "{told}" >> "{tmp_path}/run/log.txt"'
    start(tmp_path, job).wait(20)
    assert was_queued(tmp_path) == queued


def test_the_stop_of_an_earlier_job_does_not_count(
    tmp_path: Path, job: dict[str, str]
) -> None:
    (tmp_path / "run" / "log.txt").write_text(f"{STOPPED}\n")
    start(tmp_path, job).wait(20)
    assert not was_queued(tmp_path)


@pytest.mark.parametrize("finished", [False, True])
def test_a_run_is_queued_again_before_its_time_is_over_unless_it_is_done(
    tmp_path: Path, job: dict[str, str], finished: bool
) -> None:
    job["WAITS"] = "sleep 0.1; while :; do sleep 0.1; done"
    if finished:
        job["TRAINS"] = f'touch "{tmp_path}/run/result.json"'
    script = start(tmp_path, job)
    end = time.monotonic() + 20
    while not (tmp_path / "ready").exists() and time.monotonic() < end:
        time.sleep(0.05)
    script.send_signal(signal.SIGTERM)
    script.wait(20)
    assert was_queued(tmp_path) != finished
