"""Counts MACs and saved activations of each module by a pass on the meta device."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from t2t.models.axial import AxialAttention
from t2t.models.layers import GhostLinear, SqueezeExcite
from t2t.models.tokenizers import TokenTransformer

ImageShape = tuple[int, int, int]

aten = torch.ops.aten
# Matrix products, with the index of their left factor among the arguments.
PRODUCTS = {aten.mm: 0, aten.addmm: 1, aten.bmm: 0, aten.baddbmm: 1}
NORMS = (aten.native_layer_norm, aten.native_group_norm)
NORM_OPERATIONS = 5


def macs_by_module(model: nn.Module, shape: ImageShape) -> dict[str, Counter[str]]:
    """MACs of one image, by module (without its submodules) and by kind."""
    weights = meta_weights(model)
    with torch.no_grad(), training_mode(model, False), ModuleTracker(model) as tracker:
        counter = MacCounter(model, weights, tracker)
        tracker.after = counter.add_hidden
        with counter:
            functional_call(model, weights, torch.empty(1, *shape, device="meta"))
    return counter.macs


def saved_bytes(model: nn.Module, shape: ImageShape, batch: int) -> Counter[str]:
    """Bytes saved for the backward pass, by the module that first saves them."""
    weights = meta_weights(model)
    seen = {storage_of(weight) for weight in weights.values()}
    kept = Counter[str]()

    def keep(tensor: Tensor) -> Tensor:
        storage = storage_of(tensor)
        if storage not in seen:
            seen.add(storage)
            kept[tracker.name] += tensor.untyped_storage().nbytes()
        return tensor

    with (
        torch.enable_grad(),
        training_mode(model, True),
        ModuleTracker(model) as tracker,
        FusedAttentionMode(),
        saved_tensors_hooks(keep, lambda tensor: tensor),
    ):
        functional_call(model, weights, torch.empty(batch, *shape, device="meta"))
    return kept


def meta_weights(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of a model on the meta device."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return {
        name: torch.empty_like(
            tensor, device="meta", requires_grad=tensor.requires_grad
        )
        for name, tensor in named
    }


def storage_of(tensor: Tensor) -> StorageWeakRef:
    """A key that two tensors share if they share memory."""
    return StorageWeakRef(tensor.untyped_storage())


@contextmanager
def training_mode(model: nn.Module, mode: bool) -> Iterator[None]:
    """Sets training or evaluation mode; restores every module's own mode."""
    before = {module: module.training for module in model.modules()}
    model.train(mode)
    try:
        yield
    finally:
        for module, was in before.items():
            module.training = was


class ModuleTracker:
    """Tracks which module of a model is running."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.running = [""]
        self.after: Callable[[str, nn.Module, Any], None] | None = None
        self.hooks: list[Any] = []

    @property
    def name(self) -> str:
        """Name of the innermost running module."""
        return self.running[-1]

    def __enter__(self) -> "ModuleTracker":
        # Axial attention would compute all pairs if its softmax had hooks.
        softmaxes = {
            part
            for module in self.model.modules()
            if isinstance(module, AxialAttention)
            for part in module.attn.modules()
        }
        for name, module in self.model.named_modules():
            if module in softmaxes:
                continue
            self.hooks += [
                module.register_forward_pre_hook(self.enter(name)),
                module.register_forward_hook(self.leave(name)),
            ]
        return self

    def __exit__(self, *error: object) -> None:
        for hook in self.hooks:
            hook.remove()

    def enter(self, name: str) -> Callable[..., None]:
        """A hook that marks a module as running."""

        def entered(module: nn.Module, arguments: Any) -> None:
            self.running.append(name)

        return entered

    def leave(self, name: str) -> Callable[..., None]:
        """A hook that marks a module as done."""

        def left(module: nn.Module, arguments: Any, output: Any) -> None:
            self.running.pop()
            if self.after is not None:
                self.after(name, module, output)

        return left


class MacCounter(TorchDispatchMode):
    """Counts the MACs of all operations that run within it."""

    def __init__(
        self, model: nn.Module, weights: dict[str, Tensor], tracker: ModuleTracker
    ) -> None:
        super().__init__()
        self.tracker = tracker
        self.modules = dict(model.named_modules())
        self.macs: dict[str, Counter[str]] = defaultdict(Counter)
        self.names = {storage_of(weight): name for name, weight in weights.items()}
        self.frozen = {name for name, _ in model.named_buffers()}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        operation = func.overloadpacket
        if operation in PRODUCTS:
            left, right = args[PRODUCTS[operation] :][:2]
            weight = self.weight_among(left, right)
            self.add(item_of(weight, self.frozen), weight, result, left.shape[-1])
        elif operation is aten.convolution:
            image, kernel, transposed = args[0], args[1], args[6]
            # Each number of the coarser map is multiplied with one filter.
            numbers = image if transposed else result
            weight = self.weight_among(kernel)
            self.add("convolution", weight, numbers, math.prod(kernel.shape[1:]))
        elif operation in NORMS:
            self.add("normalisation", None, result[0], NORM_OPERATIONS)
        return result

    def weight_among(self, *factors: Tensor) -> str | None:
        """The name of the parameter or buffer that is one of the factors."""
        names = (self.names.get(storage_of(factor)) for factor in factors)
        return next((name for name in names if name is not None), None)

    def add(self, item: str, weight: str | None, numbers: Tensor, each: int) -> None:
        """Adds `each` MACs per number of a tensor."""
        module = self.tracker.name
        # A module may use the weight of a submodule.
        if weight is not None and weight.startswith(f"{module}." if module else ""):
            module = weight.rpartition(".")[0]
        elif item == "convolution" and isinstance(
            self.modules[module], TokenTransformer
        ):
            module += ".qkv"
        self.macs[module][item] += numbers.numel() * each

    def add_hidden(self, name: str, module: nn.Module, output: Any) -> None:
        """Adds MACs that no operation shows: scales, and norms in a convolution."""
        if isinstance(module, TokenTransformer):
            rows, columns = output.shape[-2:]
            operations = NORM_OPERATIONS * module.window_dim * rows * columns
            self.macs[f"{name}.norm1"]["normalisation"] += operations
        elif isinstance(module, GhostLinear):
            num_scaled = len(module.scales) / (len(module.scales) + 1)
            self.macs[name]["scales"] += round(output.numel() * num_scaled)
        elif isinstance(module, SqueezeExcite):
            self.macs[name]["scales"] += output.numel()


def item_of(weight: str | None, frozen: set[str]) -> str:
    """The kind of a matrix product, by its weight."""
    if weight is None:
        return "attention"
    return "kernel features" if weight in frozen else "linear"


class FusedAttentionMode(TorchFunctionMode):
    """Attention saves what fused kernels save, which the meta device does not."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is not F.scaled_dot_product_attention:
            return func(*args, **kwargs)
        given = dict(zip(("query", "key", "value"), args, strict=False)) | kwargs
        factors = (given["query"], given["key"], given["value"])
        # The fused kernels need contiguous channels.
        if any(factor.stride(-1) != 1 for factor in factors):
            return func(*args, **kwargs)
        return FusedAttention.apply(*factors)


class FusedAttention(torch.autograd.Function):
    """Saves queries, keys, values, outputs and a log-sum per query; no map."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        # The kernels store heads next to channels, so joining them copies nothing.
        mixed = query.new_empty(
            *query.shape[:-3], query.shape[-2], query.shape[-3], value.shape[-1]
        ).transpose(-3, -2)
        log_sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, mixed, log_sums)
        return mixed
