"""Cores and memory that this process may use, within a container's limits."""

import math
import os
import time
from contextlib import suppress
from pathlib import Path

from t2t.torchrun import env_count

_GROUPS = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")
_TIMES = Path("/proc/stat")
_LARGEST_RANGE = 1 << 36


def num_cores() -> int:
    """Cores this process may use; under torchrun, its share of the machine's."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    cores = math.ceil(min(cores, _container_cores()))
    return max(cores // env_count("LOCAL_WORLD_SIZE"), 1)


def free_cores() -> float:
    """Idle cores among those this process may use, measured for a tenth of a second.

    Under torchrun, its share of them. All cores if the system reports no idle time.
    """
    idle, used, started = _idle_seconds(), _group_seconds(), time.monotonic()
    time.sleep(0.1)
    passed = time.monotonic() - started
    idle_now, used_now = _idle_seconds(), _group_seconds()
    granted = _container_cores()
    if used is not None and used_now is not None:
        granted -= (used_now - used) / passed
    if idle is None or idle_now is None:
        return max(min(num_cores(), granted), 0.0)
    free = min((idle_now - idle) / passed, granted)
    return min(max(free, 0.0) / env_count("LOCAL_WORLD_SIZE"), num_cores())


def _idle_seconds() -> float | None:
    """Idle time of the cores this process may use, since boot."""
    ours = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    rows = (line.split() for line in _text(_TIMES).splitlines())
    idle = [
        int(row[4]) + int(row[5])  # idle and iowait
        for row in rows
        if row[0].removeprefix("cpu").isdecimal() and int(row[0][3:]) in ours
    ]
    return sum(idle) / os.sysconf("SC_CLK_TCK") if idle else None


def _group_seconds() -> float | None:
    """CPU time the container has used, if its CPU is limited."""
    for group in _groups(""):
        rows = dict(line.split() for line in _text(group / "cpu.stat").splitlines())
        if "usage_usec" in rows and _text(group / "cpu.max")[:3] not in ("", "max"):
            return int(rows["usage_usec"]) / 1e6
    return None


def free_memory() -> int:
    """Free bytes of memory; under torchrun, this process's share of them."""
    try:
        with open("/proc/meminfo") as table:
            kibibytes = dict(line.split(":") for line in table)["MemAvailable"]
        free = int(kibibytes.split()[0]) * 1024
    except (OSError, KeyError):
        # Other systems have no such table: half of all memory is a fair guess.
        free = half_of_all_memory()
    return max(int(min(free, _container_memory())), 0) // env_count("LOCAL_WORLD_SIZE")


def half_of_all_memory() -> int:
    """Half of the machine's memory, more than batches in flight need."""
    if not hasattr(os, "sysconf"):
        return 1 << 33
    return min(
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2, _LARGEST_RANGE
    )


def _container_cores() -> float:
    """The container's CPU quota in cores, which may be fewer than it sees."""
    quotas = [_text(group / "cpu.max").split() for group in _groups("")]
    quotas += [
        [_text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us")]
        for group in _groups("cpu")
    ]
    least = math.inf
    for quota in quotas:
        with suppress(ValueError, ZeroDivisionError):  # "max", or no container
            granted, period = map(int, quota)
            least = min(least, granted / period if granted > 0 else math.inf)
    return least


def _container_memory() -> float:
    """Bytes left to the container; cached files count as free."""
    least = math.inf
    for controller, limit, used, cached in (
        ("", "memory.max", "memory.current", "inactive_file"),
        (
            *("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
            "total_inactive_file",
        ),
    ):
        for group in _groups(controller):
            with suppress(ValueError):  # "max", or no container
                left = int(_text(group / limit)) - int(_text(group / used))
                table = _text(group / "memory.stat").splitlines()
                rows = dict(line.split() for line in table)
                least = min(least, left + int(rows.get(cached, 0)))
    return least


def _groups(controller: str) -> list[Path]:
    """This process's control group and its parents, all of which limit it.

    Version 1 has a tree for each controller. Within a container, the own group is the
    root of the tree, whatever path the system reports.
    """
    root = _GROUPS / controller
    for line in _text(_MEMBERSHIP).splitlines():
        _, controllers, inner = line.split(":", 2)
        if controller in controllers.split(","):
            own = root / inner.lstrip("/")
            return [own, *own.parents]
    return [root]


def _text(path: Path) -> str:
    """The text of a system file; empty if there is none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
