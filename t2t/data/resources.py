"""What of the machine this process may use: cores and memory, a container's too."""

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
    """Cores this process may use, its share where several run on one machine."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    cores = math.ceil(min(cores, _cores_granted()))
    return max(cores // env_count("LOCAL_WORLD_SIZE"), 1)


def free_cores(seconds: float = 0.1) -> float:
    """Idle cores among those this process may use, measured for a moment.

    Divided by the number of local processes under torchrun; all cores where the system
    does not report idle time.
    """
    idle, used, started = _idle_seconds(), _group_seconds(), time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - started
    idle_now, used_now = _idle_seconds(), _group_seconds()
    granted = _cores_granted()
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
    """CPU time that the container has used, if its CPU is limited."""
    for group in _groups(""):
        rows = dict(line.split() for line in _text(group / "cpu.stat").splitlines())
        if "usage_usec" in rows and _text(group / "cpu.max")[:3] not in ("", "max"):
            return int(rows["usage_usec"]) / 1e6
    return None


def free_memory() -> int:
    """Bytes of memory this process could take now, its share where several run."""
    try:
        with open("/proc/meminfo") as table:
            kibibytes = dict(line.split(":") for line in table)["MemAvailable"]
        free = int(kibibytes.split()[0]) * 1024
    except (OSError, KeyError):
        # No such table outside Linux: half of all memory is a fair guess.
        free = half_of_all_memory()
    return max(int(min(free, _memory_granted())), 0) // env_count("LOCAL_WORLD_SIZE")


def half_of_all_memory() -> int:
    """Half of the machine's memory: more than any sensible number of batches needs."""
    if not hasattr(os, "sysconf"):
        return 1 << 33
    return min(
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2, _LARGEST_RANGE
    )


def _cores_granted() -> float:
    """Cores' time that the container has, which may be less than the cores it sees."""
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


def _memory_granted() -> float:
    """Bytes that the container has left, counting files that it only remembers."""
    least = math.inf
    for controller, most, used, remembered in (
        ("", "memory.max", "memory.current", "inactive_file"),
        (
            *("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
            "total_inactive_file",
        ),
    ):
        for group in _groups(controller):
            with suppress(ValueError):  # "max", or no container
                left = int(_text(group / most)) - int(_text(group / used))
                table = _text(group / "memory.stat").splitlines()
                rows = dict(line.split() for line in table)
                least = min(least, left + int(rows.get(remembered, 0)))
    return least


def _groups(controller: str) -> list[Path]:
    """This process's control group and those around it, all of which limit it.

    Older kinds have a tree for each controller. Seen from within a container, the own
    group is the root of a tree, wherever the system says that it lies.
    """
    root = _GROUPS / controller
    for line in _text(_MEMBERSHIP).splitlines():
        _, controllers, inner = line.split(":", 2)
        if controller in controllers.split(","):
            own = root / inner.lstrip("/")
            return [own, *own.parents]
    return [root]


def _text(path: Path) -> str:
    """What a file of the system says, nothing where there is none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
