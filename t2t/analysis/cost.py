"""The cost of a model per module: parameters, MACs and activation memory."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from t2t.analysis.meter import NORM_OPERATIONS, macs_by_module, saved_bytes
from t2t.errors import UserError
from t2t.models.config import Size
from t2t.models.vit import VisionTransformer

ITEMS = {
    "linear": "products of linear layers",
    "convolution": "products of convolutions and soft splits",
    "attention": "products of two activations",
    "kernel features": "products with frozen Performer features",
    "normalisation": f"LayerNorm, GroupNorm: {NORM_OPERATIONS} per element",
    "scales": "ghost scales and gates: 1 per element",
}
"""Kinds of MACs, with what each counts."""


@dataclass(frozen=True)
class Part:
    """A module with its submodules, or a parameter that a module holds itself."""

    name: str
    """Dotted name in the model; empty for the whole model."""
    kind: str
    """Class name."""
    parameters: int
    """Trainable parameters."""
    macs: int
    """MACs of the forward pass."""
    activation_bytes: int
    """Bytes saved for the backward pass, in float32."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of one image in a model."""

    image_size: Size
    in_channels: int
    parameters: int
    """Trainable parameters."""
    frozen_parameters: int
    """Floating-point numbers in the state dict that are not trained."""
    macs: int
    """MACs of the forward pass: the sum of the items."""
    items: dict[str, int]
    """MACs by kind; `ITEMS` explains each."""
    activation_bytes: int
    """Bytes saved for the backward pass, in float32."""
    parts: tuple[Part, ...]
    """The whole model, then each part, parents first."""

    @property
    def activation_bytes_bf16(self) -> int:
        """Bytes saved for the backward pass, in bfloat16."""
        return self.activation_bytes // 2


def count(
    model: nn.Module,
    image_size: int | Size | None = None,
    in_channels: int | None = None,
) -> Cost:
    """The cost of one image, by default of the model's own size and channels."""
    size = image_size or default_image_size(model)
    height, width = (size, size) if isinstance(size, int) else size
    channels = in_channels or default_channels(model)
    shape = (channels, height, width)
    try:
        macs = macs_by_module(model, shape)
        # The difference leaves out what does not grow with the batch.
        saved = saved_bytes(model, shape, batch=3)
        saved.subtract(saved_bytes(model, shape, batch=2))
    except (RuntimeError, AssertionError, IndexError) as error:
        # Our models take any image until its bytes overflow an integer.
        if isinstance(model, VisionTransformer) and "overflow" not in str(error):
            raise
        raise UserError(
            f"{type(model).__name__} cannot take images of {height}×{width} pixels and "
            f"{channels} channels: {' '.join(str(error).split())}"
        ) from error
    items = sum(macs.values(), Counter[str]())
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    stored = {
        id(tensor): tensor for tensor in model.state_dict(keep_vars=True).values()
    }
    numbers = sum(t.numel() for t in stored.values() if t.is_floating_point())
    return Cost(
        image_size=(height, width),
        in_channels=channels,
        parameters=parameters,
        frozen_parameters=numbers - parameters,
        macs=items.total(),
        items={item: items[item] for item in ITEMS},
        activation_bytes=saved.total(),
        parts=tuple(parts_of(model, macs, saved)),
    )


def default_image_size(model: nn.Module) -> Size:
    """The image size in a model's config."""
    if isinstance(model, VisionTransformer):
        return model.config.image_size
    config: Any = getattr(model, "pretrained_cfg", None) or {}
    if "input_size" not in config:
        raise UserError(
            f"{type(model).__name__} has no image size of its own; give "
            "image_size=(height, width)."
        )
    height, width = config["input_size"][-2:]
    return int(height), int(width)


def default_channels(model: nn.Module) -> int:
    """The input channels of a model: those of its first convolution."""
    if isinstance(model, VisionTransformer):
        return model.config.in_channels
    convolutions = (m for m in model.modules() if isinstance(m, nn.Conv2d))
    first = next(convolutions, None)
    return 3 if first is None else first.in_channels


def parts_of(
    model: nn.Module, macs: Mapping[str, Counter[str]], saved: Mapping[str, int]
) -> Iterator[Part]:
    """The whole model, all modules and the parameters that modules hold themselves."""
    all_macs = with_submodules({name: items.total() for name, items in macs.items()})
    all_saved = with_submodules(saved)
    for name, module in model.named_modules():
        yield Part(
            name,
            type(module).__name__,
            sum(p.numel() for p in module.parameters() if p.requires_grad),
            all_macs[name],
            all_saved[name],
        )
        if any(module.children()):
            for own, parameter in module.named_parameters(recurse=False):
                if parameter.requires_grad:
                    path = f"{name}.{own}" if name else own
                    yield Part(path, "Parameter", parameter.numel(), 0, 0)


def with_submodules(numbers: Mapping[str, int]) -> Counter[str]:
    """A number of each module plus those of its submodules."""
    total = Counter[str]()
    for name, number in numbers.items():
        total[name] += number
        while name:
            name = name.rpartition(".")[0]
            total[name] += number
    return total
