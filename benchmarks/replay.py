"""Times of kernels on a GPU, replayed from a CUDA graph."""

from collections.abc import Callable

import torch
from torch import Tensor

ROUNDS = 25
WARMING = 3


def room_to_flush() -> Tensor:
    """More than a GPU's cache holds: writing it empties the cache."""
    return torch.empty(2**28, dtype=torch.uint8, device="cuda")


def replayed(run: Callable[[], object], flush: Tensor) -> list[float]:
    """Microseconds of single runs from a graph, the cache emptied before each."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    times = []
    for _ in range(ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        flush.zero_()
        begin.record()
        graph.replay()
        end.record()
        times.append((begin, end))
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) * 1000 for begin, end in times[WARMING:]]
