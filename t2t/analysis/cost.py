"""What a model costs: parameters, multiplications and memory, by part."""

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
    "attention": "products of activations with each other",
    "kernel features": "products with frozen Performer features",
    "normalisation": f"LayerNorm, GroupNorm: {NORM_OPERATIONS} for an element",
    "scales": "ghost scales and gates: 1 for an element",
}
"""What is counted, in words."""


@dataclass(frozen=True)
class Part:
    """One module, or a parameter that a module holds itself, with all inside it."""

    name: str
    """Its place in the model; empty for the whole."""
    kind: str
    """Its class."""
    parameters: int
    """Trained numbers."""
    macs: int
    """Multiplications of the forward pass."""
    activation_bytes: int
    """Bytes of float32 that a training forward keeps for the backward pass."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one image costs in a model."""

    image_size: Size
    in_channels: int
    parameters: int
    """Trained numbers."""
    frozen_parameters: int
    """Numbers stored with the weights that training does not learn."""
    macs: int
    """Multiplications of the forward pass: the sum of the items."""
    items: dict[str, int]
    """Multiplications by what they are; `ITEMS` explains each."""
    activation_bytes: int
    """Bytes of float32 that a training forward keeps for the backward pass."""
    parts: tuple[Part, ...]
    """The whole, then each part, parents before what they hold."""

    @property
    def activation_bytes_bf16(self) -> int:
        """The same with every number stored in two bytes instead of four."""
        return self.activation_bytes // 2


def count(
    model: nn.Module,
    image_size: int | Size | None = None,
    in_channels: int | None = None,
) -> Cost:
    """The cost of one image; its size and channels are the model's own if not given."""
    size = image_size or own_image_size(model)
    height, width = (size, size) if isinstance(size, int) else size
    channels = in_channels or own_channels(model)
    shape = (channels, height, width)
    try:
        macs = macs_by_module(model, shape)
        # What does not grow with the batch is no part of an image's memory.
        saved = saved_bytes(model, shape, batch=3)
        saved.subtract(saved_bytes(model, shape, batch=2))
    except (RuntimeError, AssertionError, IndexError) as error:
        # Ours take any image; numbers of bytes that no machine can hold stop them.
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


def own_image_size(model: nn.Module) -> Size:
    """The image size that a model says it is for."""
    if isinstance(model, VisionTransformer):
        return model.config.image_size
    about: Any = getattr(model, "pretrained_cfg", None) or {}
    if "input_size" not in about:
        raise UserError(
            f"{type(model).__name__} does not say which images it takes; give "
            "image_size=(height, width)."
        )
    height, width = about["input_size"][-2:]
    return int(height), int(width)


def own_channels(model: nn.Module) -> int:
    """The channels of the images a model takes: those of its first convolution."""
    if isinstance(model, VisionTransformer):
        return model.config.in_channels
    convolutions = (m for m in model.modules() if isinstance(m, nn.Conv2d))
    first = next(convolutions, None)
    return 3 if first is None else first.in_channels


def parts_of(
    model: nn.Module, macs: Mapping[str, Counter[str]], saved: Mapping[str, int]
) -> Iterator[Part]:
    """The whole and every part, with the parameters that modules hold themselves."""
    all_macs = with_inside({name: items.total() for name, items in macs.items()})
    all_saved = with_inside(saved)
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
                    place = f"{name}.{own}" if name else own
                    yield Part(place, "Parameter", parameter.numel(), 0, 0)


def with_inside(own: Mapping[str, int]) -> Counter[str]:
    """A figure of each module, with that of all modules inside it."""
    total = Counter[str]()
    for name, figure in own.items():
        total[name] += figure
        while name:
            name = name.rpartition(".")[0]
            total[name] += figure
    return total
