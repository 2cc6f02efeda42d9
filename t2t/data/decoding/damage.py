"""Damaged images, and how many of them a run skips before it stops."""

import threading
from collections.abc import Callable

from t2t.errors import LocalError, machine_error, on_one_line


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
                self.warn(f"{damaged}; it is skipped.")
            if len(self._reasons) <= self.limit:
                return
            listed = "\n".join(
                f"  {DamagedImage(*each)}" for each in self._reasons.items()
            )
        raise LocalError(
            f"{len(self._reasons)} images cannot be read and {self.limit} may be "
            "skipped: repair or remove them, or from Python allow more with "
            f"damage_limit.\n{listed}"
        )
