"""Adapts the tensors of a file to a model, or says what differs."""

import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from t2t.errors import UserError
from t2t.models.checkpoint_io.heads import HEADS, Classes, adapt_heads
from t2t.models.checkpoint_io.published import (
    WHY_UNUSED,
    StateDict,
    is_unused,
    translate,
)
from t2t.models.checkpoint_io.resize import adapt_grid, fix_positions, fixed_tables
from t2t.models.config import ModelConfig
from t2t.models.vit import VisionTransformer

ADAPTABLE = ("num_classes", "image_size", "in_channels", "drop_path", "token_dropout")
"""Options that weights are adapted to, or do not depend on."""
NOT_IN_SHAPES = (
    "num_heads",
    "splits",
    "positions",
    "positions_at",
    "attention_scale",
    "pool",
    "norm_eps",
)
"""Options that change what a model computes but not necessarily its shapes."""


@dataclass(frozen=True)
class AdaptedWeights:
    """Tensors adapted to a model, which is unchanged until `apply`."""

    model: nn.Module
    state: StateDict
    notes: tuple[str, ...]
    """What was changed to make them fit, a sentence each."""
    kept: tuple[str, ...] = ()
    """What was kept although it could have been replaced, a sentence each."""
    new_heads: tuple[str, ...] = ()
    """The names of heads that do not come from the file."""
    num_loaded: int = 0
    """How many tensors come from the file."""
    fixes_positions: bool = False

    def apply(self) -> None:
        """Loads the tensors into the model."""
        if self.fixes_positions:
            assert isinstance(self.model, VisionTransformer)
            fix_positions(self.model)
        self.model.load_state_dict(self.state)


def adapt_weights(
    model: nn.Module,
    weights: Mapping[str, Tensor],
    source: ModelConfig | None = None,
    origin: str = "The file",
    classes: Classes | None = None,
) -> AdaptedWeights:
    """Weights for a model from a checkpoint of another size or other classes.

    `source` is the config of the model they come from, if known; `classes` decide
    whether the head is kept.
    """
    state, notes, fixes = dict(weights), [], False
    wanted: StateDict = dict(model.state_dict())
    heads: tuple[str, ...] = HEADS
    if isinstance(model, VisionTransformer):
        notes += unused_note(state)
        state = translate(state)
        notes += adapt_channels(state, wanted, model.config.in_channels, origin)
        grid_notes, fixes = adapt_grid(state, model, source)
        notes += grid_notes
        if fixes:
            wanted |= fixed_tables(model)
        notes += config_note(source, model.config)
    else:
        named = getattr(model, "pretrained_cfg", {}).get("classifier") or ()
        heads = (named,) if isinstance(named, str) else tuple(named)
        state, timm_notes = adapt_timm(state, model, heads)
        notes += timm_notes
    fitted = adapt_heads(state, wanted, heads, classes or Classes())
    differences = describe_differences(state, wanted)
    if differences:
        raise UserError(
            f"{origin} does not fit the model: {differences}."
            f"{differing_options(source, model)}{grid_hint(state, model)}"
        )
    num_loaded = sum(state[name] is not own for name, own in wanted.items())
    changed = (*notes, *fitted.changed)
    return AdaptedWeights(
        model,
        state,
        changed,
        kept=tuple(fitted.kept),
        new_heads=tuple(fitted.new),
        num_loaded=num_loaded,
        fixes_positions=fixes,
    )


def adapt_names_and_positions(
    model: VisionTransformer, weights: StateDict
) -> StateDict:
    """Weights under our names and for the model's grid; nothing else is checked."""
    state = translate(weights)
    _, fixes = adapt_grid(state, model, source=None)
    if fixes:
        fix_positions(model)
    return state


def unused_note(state: StateDict) -> list[str]:
    """A sentence on tensors that our models do not use, if there are any."""
    found = sorted(name for name in state if is_unused(name))
    were = "were" if len(found) > 1 else "was"
    return [f"{shorten(found)} {were} skipped: {WHY_UNUSED}."] if found else []


def adapt_timm(
    state: StateDict, model: nn.Module, heads: tuple[str, ...]
) -> tuple[StateDict, list[str]]:
    """Adapts weights of a timm model to another image size with timm's own filter."""
    wanted = model.state_dict()
    differing = [
        name
        for name, tensor in state.items()
        if name in wanted
        and tensor.shape != wanted[name].shape
        and not name.startswith(tuple(f"{head}." for head in heads))
    ]
    # timm assumes a square grid, and would mix up the tokens of any other.
    if "pos_embed" in differing and grid_hint(state, model):
        return state, []
    module = sys.modules[type(model).__module__]
    filter_fn = getattr(module, "checkpoint_filter_fn", None)
    if not differing or filter_fn is None:
        return state, []
    fitted = dict(filter_fn(dict(state), model))
    notes = [
        f"{name} was interpolated from {tuple(state[name].shape)} to "
        f"{tuple(fitted[name].shape)}."
        for name in differing
        if name in fitted and fitted[name].shape != state[name].shape
    ]
    return fitted, notes


def adapt_channels(
    state: StateDict, wanted: StateDict, in_channels: int, origin: str
) -> list[str]:
    """Turns a first layer for several channels into one for gray images.

    The result is exactly that of repeating the gray image in every channel.
    """
    first = next(
        (name for name, tensor in wanted.items() if tensor.ndim == 4),
        "tokenizer.steps.0.norm1.weight",
    )
    if first not in state or first not in wanted:
        return []
    per_channel = wanted[first].numel() // in_channels
    given, rest = divmod(state[first].numel(), per_channel)
    if rest or given == in_channels:
        return []
    can_fold = wanted[first].ndim == 4 or "tokenizer.steps.0.qkv.bias" in state
    if in_channels != 1 or not can_fold:
        raise UserError(
            f"{origin} is for images of {given} channels and the model takes "
            f"{in_channels}; weights can be adapted to 1 channel only, and not those "
            f"of softmax tokens: load with in_channels={given} and convert the images."
        )
    if wanted[first].ndim == 4:
        state[first] = state[first].float().sum(1, keepdim=True)
    else:
        fold_window_channels(state, given)
    return [f"The first layer for {given} channels was summed for gray images."]


def fold_window_channels(state: StateDict, num_channels: int) -> None:
    """Sums LayerNorm and projection of the first soft split over equal channels."""
    step = "tokenizer.steps.0."
    weight, gain, shift = (
        state[step + name].float()
        for name in ("qkv.weight", "norm1.weight", "norm1.bias")
    )
    # Equal channels have the mean and variance of one of them, so the norm's gain can
    # move into the projection and its shift into the projection's bias.
    by_channel = (weight * gain).unflatten(1, (num_channels, -1))
    state[step + "qkv.bias"] = state[step + "qkv.bias"] + weight @ shift
    state[step + "qkv.weight"] = by_channel.sum(1)
    state[step + "norm1.weight"] = torch.ones_like(gain[: by_channel.shape[-1]])
    state[step + "norm1.bias"] = torch.zeros_like(state[step + "norm1.weight"])


def config_note(source: ModelConfig | None, own: ModelConfig) -> list[str]:
    """A sentence on options that differ from the file's model, if shapes are equal."""
    if source is None:
        return []
    differing = [
        f"{option}={getattr(source, option)!r} (here {getattr(own, option)!r})"
        for option in NOT_IN_SHAPES
        if getattr(source, option) != getattr(own, option)
        # A sinusoid becomes fixed positions when the grid changes.
        and {getattr(source, option), getattr(own, option)} != {"sinusoid", "fixed"}
    ]
    if not differing:
        return []
    return [
        f"Its model was made with {', '.join(differing)}: the shapes fit, but this "
        "model computes something else with these weights."
    ]


def differing_options(source: ModelConfig | None, model: nn.Module) -> str:
    """A closing sentence that names the options in which a file's model differs."""
    if source is None or not isinstance(model, VisionTransformer):
        return ""
    given, own = asdict(source), asdict(model.config)
    differing = [
        f"{option}={value:g}" if isinstance(value, float) else f"{option}={value}"
        for option, value in given.items()
        if value != own[option] and option not in ADAPTABLE
    ]
    if not differing:
        return ""
    return f" It was made with {', '.join(differing)}: give the model the same."


def grid_hint(state: StateDict, model: nn.Module) -> str:
    """A closing sentence on positions whose grid is unknown: not a square number."""
    for name, own in model.state_dict().items():
        given = state.get(name)
        if given is None or given.shape == own.shape or given.ndim != own.ndim:
            continue
        if isinstance(model, VisionTransformer) and name.endswith(".table"):
            num_prefix = model.config.num_prefix_tokens
        elif name == "pos_embed" and own.ndim == 3:
            num_patches = getattr(getattr(model, "patch_embed", None), "num_patches", 0)
            num_prefix = own.shape[1] - (num_patches or own.shape[1])
        else:
            continue
        num_tokens = given.shape[-2] - num_prefix
        if num_tokens < 1 or math.isqrt(num_tokens) ** 2 != num_tokens:
            return (
                f" Its positions are for {num_tokens} tokens, which is not a square "
                "number: give the image_size that it was made for."
            )
    return ""


def describe_differences(state: StateDict, wanted: StateDict) -> str:
    """The tensors that are missing, unexpected or of another shape; empty if none."""
    missing = [name for name in wanted if name not in state]
    unexpected = [name for name in state if name not in wanted]
    shapes = [
        f"{name} {tuple(state[name].shape)} instead of {tuple(tensor.shape)}"
        for name, tensor in wanted.items()
        if name in state and state[name].shape != tensor.shape
    ]
    kinds = [
        f"{name} {state[name].dtype}"
        for name, tensor in wanted.items()
        if name in state
        and tensor.is_floating_point()
        and not state[name].is_floating_point()
    ]
    parts = [
        f"{len(names)} {what} ({shorten(names)})"
        for names, what in (
            (missing, "missing"),
            (unexpected, "not the model's"),
            (shapes, "of another shape"),
            (kinds, "of integers instead of floating point"),
        )
        if names
    ]
    return "; ".join(parts)


def shorten(names: list[str], num: int = 3) -> str:
    """The first few names, and how many more there are."""
    rest = f" and {len(names) - num} more" if len(names) > num else ""
    return ", ".join(names[:num]) + rest
