"""Times, rates, counts and sizes as text."""

import math
import os


def duration(seconds: float) -> str:
    """A time in s, min or h."""
    if not math.isfinite(seconds):
        return "?"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def pace(rate: float) -> str:
    """A rate in images/s."""
    return f"{rate:,.0f} images/s" if rate >= 1 else f"{rate:.2g} images/s"


def counted(number: int, noun: str) -> str:
    """A number and its noun, in the singular or plural."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def format_bytes(num_bytes: int) -> str:
    """A number of bytes with its unit, such as 1.2 GB."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.3g} {unit}"
    return f"{num_bytes} bytes"


def last_part(path: str) -> str:
    """A path without its folders, or a name as it is."""
    return os.path.basename(os.path.abspath(path)) or path
