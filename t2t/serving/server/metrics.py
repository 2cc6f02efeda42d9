"""Numbers about the server, in Prometheus' text format."""

import sys
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
BATCHES = (1, 2, 4, 8, 16, 32, 64)


class Histogram:
    """Counts of values up to each bound, their sum and number."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    @property
    def mean(self) -> float:
        """The mean value so far."""
        return self.total / max(sum(self.counts), 1)

    def observe(self, value: float) -> None:
        """Counts a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str) -> Iterator[str]:
        """The samples of the histogram."""
        below = 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            below += count
            yield f'{name}_bucket{{le="{bound:g}"}} {below}'
        yield f'{name}_bucket{{le="+Inf"}} {sum(self.counts)}'
        yield f"{name}_sum {self.total:.6f}"
        yield f"{name}_count {sum(self.counts)}"


class Metrics:
    """What the server counts; changed by the event loop alone."""

    def __init__(self) -> None:
        self.started = time.time()
        self.requests: Counter[tuple[str, int]] = Counter()
        self.request_seconds = Histogram(SECONDS)
        self.decode_seconds = Histogram(SECONDS)
        self.wait_seconds = Histogram(SECONDS)
        self.model_seconds = Histogram(SECONDS)
        self.batch_size = Histogram(BATCHES)
        self.cancelled = 0
        self.gauges: dict[str, tuple[str, Callable[[], float]]] = {}

    def gauge(self, name: str, help: str, value: Callable[[], float]) -> None:
        """Adds a number that is read with the metrics."""
        self.gauges[name] = (help, value)

    def render(self) -> str:
        """All metrics as text."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        name = "t2t_requests_total"
        yield from _header(name, "counter", "Requests by path and status.")
        for (path, status), count in sorted(self.requests.items()):
            yield f'{name}{{path="{path}",status="{status}"}} {count}'
        name = "t2t_cancelled_total"
        yield from _header(name, "counter", "Requests whose client left early.")
        yield f"{name} {self.cancelled}"
        for name, help, histogram in (
            (
                "t2t_request_seconds",
                "From the headers to the reply.",
                self.request_seconds,
            ),
            ("t2t_decode_seconds", "Decoding an image.", self.decode_seconds),
            ("t2t_wait_seconds", "Waiting for the model.", self.wait_seconds),
            (
                "t2t_model_seconds",
                "The model, for the batch of an image.",
                self.model_seconds,
            ),
            ("t2t_batch_size", "Images in the batch of an image.", self.batch_size),
        ):
            yield from _header(name, "histogram", help)
            yield from histogram.lines(name)
        for name, (help, value) in self.gauges.items():
            yield from _header(name, "gauge", help)
            yield f"{name} {value():g}"
        name = "process_start_time_seconds"
        yield from _header(name, "gauge", "When the server started.")
        yield f"{name} {self.started:.3f}"
        name = "process_resident_memory_bytes"
        yield from _header(name, "gauge", "Memory in use.")
        yield f"{name} {resident_bytes()}"


def _header(name: str, kind: str, help: str) -> tuple[str, str]:
    return f"# HELP {name} {help}", f"# TYPE {name} {kind}"


def resident_bytes() -> int:
    """The memory of this process, or its peak on systems that give only that."""
    import resource

    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
