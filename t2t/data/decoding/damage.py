"""Damaged images, and how many of them a run skips before it stops."""

import re
import threading
from collections.abc import Callable

from t2t.errors import LocalError, UserError, machine_error, on_one_line

DEFAULT_MAX_DAMAGED = "1%"
MIN_LIMIT = 10
"""Images that a share allows at least."""
NUM_LISTED = 20
NUM_LOGGED = 100


class DamagedImage(Exception):  # noqa: N818 (it names a thing, not a mistake)
    """An image that no decoder can read."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"{on_one_line(self.name) or 'an image'}: {self.reason}"


def unread(name: str, error: Exception) -> DamagedImage | LocalError:
    """The error of an image that could not be read: damaged, or the machine's fault."""
    # A lack of memory or open files must not change what is trained on.
    reason = getattr(error, "strerror", None) or str(error)
    return machine_error(name, error) or DamagedImage(name, reason)


def damage_limit(max_damaged: str, num_images: int) -> int:
    """The number of images that a share such as `1%`, or a number, allows."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*", str(max_damaged))
    if found is None or (found[2] and float(found[1]) > 100):
        raise UserError(
            f"--max-damaged {max_damaged} is neither a number of images nor a share "
            "of them: give for example 50 or 2%."
        )
    if not found[2]:
        return int(float(found[1]))
    share = float(found[1]) / 100
    return max(int(share * num_images), MIN_LIMIT) if share else 0


class Damage:
    """The damaged images found so far; more than `limit` stop the run."""

    def __init__(
        self, limit: int = 100, warn: Callable[[str], None] | None = None
    ) -> None:
        self.limit = limit
        self.warn = warn
        self._reasons: dict[str, str] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._reasons)

    @property
    def names(self) -> tuple[str, ...]:
        """Each damaged image once, in the order found."""
        return tuple(self._reasons)

    @property
    def reasons(self) -> tuple[tuple[str, str], ...]:
        """Name and reason of each."""
        return tuple(self._reasons.items())

    def record(self, damaged: DamagedImage) -> None:
        """Remembers an image to skip; past the limit, raises with the whole list."""
        with self._lock:
            is_new = damaged.name not in self._reasons
            self._reasons.setdefault(damaged.name, damaged.reason)
            if is_new and self.warn is not None:
                self._log(damaged, self.warn)
            if len(self._reasons) <= self.limit:
                return
            each = list(self._reasons.items())
        listed = [f"  {DamagedImage(*one)}" for one in each[:NUM_LISTED]]
        if len(each) > NUM_LISTED:
            listed.append(f"  and {len(each) - NUM_LISTED:,} more")
        raise LocalError(
            f"{len(each):,} images cannot be read and {self.limit:,} may be skipped: "
            "repair or remove them, or allow more with --max-damaged (in Python, "
            "max_damaged).\n" + "\n".join(listed)
        )

    def _log(self, damaged: DamagedImage, warn: Callable[[str], None]) -> None:
        if len(self._reasons) <= NUM_LOGGED:
            warn(f"{damaged}; it is skipped.")
        if len(self._reasons) == NUM_LOGGED:
            warn(f"{NUM_LOGGED} images are damaged; further ones are not logged.")
