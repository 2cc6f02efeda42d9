"""CUDA graphs: a function whose kernels are launched once and replayed ever after."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


class GraphedFunction:
    """A function of tensors that launches its kernels twice, then replays them.

    On a virtual machine, launching the kernels of a step one by one can take longer
    than running them. The function must do the same at every call but for the numbers
    in its tensors, and must not wait for the device. Its result is overwritten by the
    next call.
    """

    # Compiling, the choice of algorithms and the first memory of an optimizer must be
    # over before a graph is captured.
    NUM_LAUNCHED = 2

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self.function = function
        self.num_calls = 0
        self.inputs: list[Tensor] = []
        self.result: Tensor | None = None
        self.graph: torch.cuda.CUDAGraph | None = None
        self.stream: torch.cuda.Stream | None = None

    def __call__(self, *inputs: Tensor) -> Tensor:
        self.take(inputs)
        self.num_calls += 1
        if self.num_calls <= self.NUM_LAUNCHED:
            return self.launch()
        if self.graph is None:
            self.capture()
        assert self.graph is not None
        assert self.result is not None
        self.graph.replay()
        return self.result

    def take(self, inputs: Sequence[Tensor]) -> None:
        """Puts the inputs where the graph reads them."""
        if not self.inputs:
            self.inputs = [torch.empty_like(each) for each in inputs]
        for run_folder, given in zip(self.inputs, inputs, strict=True):
            run_folder.copy_(given, non_blocking=True)

    def launch(self) -> Tensor:
        """One call without a graph, on a stream of its own as captures are."""
        current = torch.cuda.current_stream()
        if self.stream is None:
            self.stream = torch.cuda.Stream(priority=current.priority)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            result = self.function(*self.inputs)
        current.wait_stream(self.stream)
        return result

    def capture(self) -> None:
        """Records the kernels of a call, which computes nothing and draws nothing."""
        drawn = torch.cuda.get_rng_state()
        graph = torch.cuda.CUDAGraph()
        # Other threads, which decode the next images, may use the device meanwhile.
        mode = "thread_local"
        with torch.cuda.graph(graph, stream=self.stream, capture_error_mode=mode):
            self.result = self.function(*self.inputs)
        self.graph = graph
        torch.cuda.set_rng_state(drawn)
