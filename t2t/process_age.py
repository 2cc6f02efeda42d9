"""How long ago this process started."""

import os
import time

IMPORTED = time.monotonic()


def process_age() -> float:
    """Seconds since this process started; since the first import where unknown."""
    try:
        with open("/proc/self/stat") as file:
            # The name of the program, in brackets, may contain spaces.
            fields = file.read().rpartition(")")[2].split()
        with open("/proc/uptime") as file:
            uptime = float(file.read().split()[0])
        return uptime - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):  # not Linux
        return time.monotonic() - IMPORTED
