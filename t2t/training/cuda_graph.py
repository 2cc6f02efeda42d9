"""CUDA graphs: a function whose kernels are captured once and then replayed."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar
from weakref import WeakSet

import torch
from torch import Tensor

Result = TypeVar("Result", Tensor, tuple[Tensor, ...])


GRAPHED: WeakSet["GraphedFunction[Any]"] = WeakSet()
"""All that were made and are still used."""


class GraphedFunction(Generic[Result]):
    """A function of tensors that runs normally at first, then as a CUDA graph.

    Launching the kernels of a step one by one can take longer than running them. The
    function must launch the same kernels at every call, and must not wait for the
    device. Its result is overwritten by the next call.
    """

    def __init__(
        self,
        function: Callable[..., Result],
        num_warmups: float = 2,
        stream: torch.cuda.Stream | None = None,
    ) -> None:
        # Compilation, the choice of algorithms and the first memory of an optimizer
        # must be over before a graph is captured. Infinity never captures one.
        self.num_warmups = num_warmups
        self.function: Callable[..., Result] = function
        self.num_calls = 0
        self.inputs: list[Tensor] = []
        self.result: Result | None = None
        self.graph: torch.cuda.CUDAGraph | None = None
        self.stream = stream
        """Where the function runs and is captured; None makes one at the first call."""
        self.has_read: torch.cuda.Event | None = None
        """After it, the inputs of the last call may be overwritten."""
        GRAPHED.add(self)

    def __call__(self, *inputs: Tensor) -> Result:
        self.copy_inputs(inputs)
        self.num_calls += 1
        if self.num_calls <= self.num_warmups:
            return self.launch()
        if self.graph is None:
            self.capture()
        assert self.graph is not None
        assert self.result is not None
        self.graph.replay()
        return self.result

    def copy_inputs(self, inputs: Sequence[Tensor]) -> None:
        """Copies the inputs to the tensors that the graph reads."""
        if not self.inputs:
            self.inputs = [torch.empty_like(each) for each in inputs]
        for own, new in zip(self.inputs, inputs, strict=True):
            own.copy_(new, non_blocking=True)
        self.has_read = torch.cuda.Event()
        self.has_read.record()

    def launch(self) -> Result:
        """One call without a graph, on the stream of the capture."""
        current = torch.cuda.current_stream()
        if self.stream is None:
            self.stream = torch.cuda.Stream(priority=current.priority)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            result = self.function(*self.inputs)
        current.wait_stream(self.stream)
        return result

    def capture(self) -> None:
        """Captures the kernels of a call without running them; random state is kept."""
        rng_state = torch.cuda.get_rng_state()
        graph = torch.cuda.CUDAGraph()
        # Other threads may use the device meanwhile, to decode the next images.
        mode = "thread_local"
        with torch.cuda.graph(graph, stream=self.stream, capture_error_mode=mode):
            self.result = self.function(*self.inputs)
        self.graph = graph
        torch.cuda.set_rng_state(rng_state)


def free_graphs() -> None:
    """Frees all graphs: NCCL would wait for those that hold its collectives."""
    for each in GRAPHED:
        if each.graph is not None:
            each.graph.reset()
            each.graph = None
