"""Reports repeated failures once, and then counts them."""

from collections.abc import Callable


class Failures:
    """Reports the first failure of a kind, the 10th, the 100th, and how many in all."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self.warn = warn
        self.counts: dict[str, int] = {}
        self.told: dict[str, int] = {}

    def report(self, kind: str, sentence: str) -> None:
        """Counts a failure; says the sentence if it is the first of its kind."""
        count = self.counts[kind] = self.counts.get(kind, 0) + 1
        if count == 1:
            self.told[kind] = count
            self.warn(sentence)
        elif str(count).strip("0") == "1":
            self.told[kind] = count
            self.warn(f"{kind} {count:,} times so far.")

    def over(self, kind: str) -> None:
        """Notes that what failed works again, so that its next failure is reported."""
        count = self.counts.pop(kind, 0)
        if count:
            often = f"{count:,} times" if count > 1 else "once"
            self.warn(f"{kind} {often}; now it works again.")

    def close(self) -> None:
        """Says how often each kind occurred, where that was not said yet."""
        for kind, count in self.counts.items():
            if count > self.told[kind]:
                self.warn(f"{kind} {count:,} times in all.")
        self.counts.clear()
