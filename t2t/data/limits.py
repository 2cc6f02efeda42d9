"""What of the machine this process may use: cores and memory, a container's too."""

import math
import os
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_LARGEST_RANGE = 1 << 36


def num_cores() -> int:
    """Cores this process may use, its share where several run on one machine."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    cores = math.ceil(min(cores, _cores_granted()))
    return max(cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")), 1)


def free_memory() -> int:
    """Bytes of the machine's memory that could be taken now."""
    try:
        with open("/proc/meminfo") as table:
            kibibytes = dict(line.split(":") for line in table)["MemAvailable"]
        free = int(kibibytes.split()[0]) * 1024
    except (OSError, KeyError):
        # No such table outside Linux: half of all memory is a fair guess.
        free = half_of_all_memory()
    return max(int(min(free, _memory_granted())), 0)


def half_of_all_memory() -> int:
    """Half of the machine's memory: more than any sensible number of batches needs."""
    if not hasattr(os, "sysconf"):
        return 1 << 33
    return min(
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2, _LARGEST_RANGE
    )


def _cores_granted() -> float:
    """Cores' time that the container has, which may be less than the cores it sees."""
    quota, _, period = _text("cpu.max").partition(" ")
    if not quota:  # the older kind of control groups
        quota, period = _text("cpu/cpu.cfs_quota_us"), _text("cpu/cpu.cfs_period_us")
    try:
        granted = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # "max", or no container
        return math.inf
    return granted if granted > 0 else math.inf


def _memory_granted() -> float:
    """Bytes that the container has left, counting files that it only remembers."""
    for most, used, table, remembered in (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        (
            "memory/memory.limit_in_bytes",
            "memory/memory.usage_in_bytes",
            "memory/memory.stat",
            "total_inactive_file",
        ),
    ):
        try:
            left = int(_text(most)) - int(_text(used))
        except ValueError:  # "max", or no container
            continue
        rows = dict(line.split() for line in _text(table).splitlines())
        return left + int(rows.get(remembered, 0))
    return math.inf


def _text(name: str) -> str:
    """A file of the container's control group, nothing where there is none."""
    try:
        return (_GROUPS / name).read_text().strip()
    except OSError:
        return ""
