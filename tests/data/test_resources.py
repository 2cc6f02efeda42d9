"""Cores and memory that a process may use, in a container and without one."""

import os
from pathlib import Path

import pytest

from t2t.data import resources
from t2t.data.resources import free_memory, num_cores


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a control group, empty as where there is no container."""
    monkeypatch.setattr(resources, "_GROUPS", tmp_path)
    monkeypatch.setattr(resources, "_MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    return tmp_path


def write(group: Path, **texts: str) -> None:
    for name, text in texts.items():
        path = group / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def test_without_a_container_all_cores_count(
    group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert num_cores() == 8
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert num_cores() == 2
    for nonsense in ("0", "-1", "two"):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", nonsense)
        assert num_cores() == 8


@pytest.mark.parametrize(
    ("given", "cores"),
    [("250000 100000", 3), ("50000 100000", 1), ("max 100000", 8), ("9900000 1000", 8)],
)
def test_a_container_has_the_time_that_it_was_granted(
    group: Path, given: str, cores: int
) -> None:
    write(group, cpu_DOT_max=given)
    assert num_cores() == cores


@pytest.mark.parametrize(("quota", "cores"), [("400000", 4), ("-1", 8)])
def test_the_older_kind_of_container_too(group: Path, quota: str, cores: int) -> None:
    write(group, cpu__cpu_DOT_cfs_quota_us=quota, cpu__cpu_DOT_cfs_period_us="100000")
    assert num_cores() == cores


def test_free_memory_is_some_of_what_there_is(group: Path) -> None:
    assert 2**20 < free_memory() < 2**50


def test_a_container_has_what_it_does_not_use(
    group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(group, memory_DOT_max="3000", memory_DOT_current="2500")
    assert free_memory() == 500
    with monkeypatch.context() as among_others:
        among_others.setenv("LOCAL_WORLD_SIZE", "4")
        assert free_memory() == 125
    # What it has read lately it can forget.
    write(group, memory_DOT_stat="anon 1000\ninactive_file 700")
    assert free_memory() == 1200
    write(group, memory_DOT_max="max")
    assert free_memory() > 2**20


def test_a_job_on_a_shared_machine_has_what_its_group_and_those_around_leave(
    group: Path,
) -> None:
    write(group, membership="3:pids:/\n0::/jobs/mine")
    write(group, jobs__mine__cpu_DOT_max="max 1000", jobs__cpu_DOT_max="3000 1000")
    assert num_cores() == 3
    write(group, jobs__mine__memory_DOT_max="900", jobs__mine__memory_DOT_current="200")
    assert free_memory() == 700
    write(group, jobs__memory_DOT_max="5000", jobs__memory_DOT_current="4600")
    assert free_memory() == 400
    write(group, membership="4:cpuacct,cpu:/my\n2:memory:/my\n0::/elsewhere")
    write(group, cpu__my__cpu_DOT_cfs_quota_us="2000")
    write(group, cpu__my__cpu_DOT_cfs_period_us="1000")
    write(group, memory__my__memory_DOT_limit_in_bytes="600")
    write(group, memory__my__memory_DOT_usage_in_bytes="500")
    write(group, memory__my__memory_DOT_stat="total_inactive_file 50")
    assert num_cores() == 2
    assert free_memory() == 150


def test_memory_is_guessed_where_the_system_reports_none(
    group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(path: str) -> None:
        raise FileNotFoundError(path)

    monkeypatch.setattr("builtins.open", nothing)
    monkeypatch.delattr("os.sysconf")
    assert free_memory() == 2**33
