"""Warns of repeated failures once, and then counts them."""

from collections.abc import Callable


class FailureCounter:
    """Warns of the first failure of a kind, the 10th, the 100th, and of their total."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self.warn = warn
        self.counts: dict[str, int] = {}
        self.reported: dict[str, int] = {}
        """The count of each kind in the last warning."""

    def failed(self, kind: str, sentence: str) -> None:
        """Counts a failure; warns with the sentence if it is the first of its kind."""
        count = self.counts[kind] = self.counts.get(kind, 0) + 1
        if count == 1:
            self.reported[kind] = count
            self.warn(sentence)
        elif str(count).strip("0") == "1":
            self.reported[kind] = count
            self.warn(f"{kind} {count:,} times so far.")

    def recovered(self, kind: str) -> None:
        """Reports that what failed works again; its next failure is a first one."""
        count = self.counts.pop(kind, 0)
        if count:
            often = f"{count:,} times" if count > 1 else "once"
            self.warn(f"{kind} {often}; now it works again.")

    def close(self) -> None:
        """Reports the total of each kind, unless the last warning gave it."""
        for kind, count in self.counts.items():
            if count > self.reported[kind]:
                self.warn(f"{kind} {count:,} times in all.")
        self.counts.clear()
