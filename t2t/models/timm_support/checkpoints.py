"""Adapts checkpoints that timm loads: other names, classes and channels."""

import logging
from typing import Any

import torch
from timm.models import adapt_input_conv
from torch import Tensor

from t2t.models.checkpoint_io.adapt import adapt_channels, adapt_names_and_positions
from t2t.models.checkpoint_io.heads import HEADS, Classes, adapt_heads, head_tensors
from t2t.models.checkpoint_io.published import StateDict
from t2t.models.timm_support.entry_points import first_layers
from t2t.models.vit import VisionTransformer

logger = logging.getLogger("t2t")


def adapt_to_model(
    model: VisionTransformer, state: dict[str, Tensor], prefix: str, *_: Any
) -> None:
    """A hook of `load_state_dict`, and so of timm's `checkpoint_path`.

    It adapts published files, and files for other classes, channels or image sizes.
    """
    own = {
        name.removeprefix(prefix): state.pop(name)
        for name in list(state)
        if name.startswith(prefix)
    }
    fitted = adapt_names_and_positions(model, own)
    wanted: StateDict = dict(model.state_dict())
    for note in (
        *adapt_first_layer(fitted, wanted, model),
        *adapt_present_heads(fitted, wanted),
    ):
        logger.warning("%s", note)
    state.update({prefix + name: tensor for name, tensor in fitted.items()})


def adapt_present_heads(state: StateDict, wanted: StateDict) -> list[str]:
    """Replaces the checkpoint's heads by the model's own if they are for other classes.

    A head that is missing stays missing: `strict` decides whether that is an error.
    """
    present = [head for head in HEADS if head_tensors(state, head)]
    return [
        note
        for head in present
        for note in adapt_heads(state, wanted, (head,), Classes()).changed
    ]


def adapt_first_layer(
    state: StateDict, wanted: StateDict, model: VisionTransformer
) -> list[str]:
    """Adapts the first layer to another number of channels, as timm does.

    For grayscale images it is summed over its channels; for more channels they are
    repeated and scaled, so that an image with repeated channels gives the same output.
    """
    config = model.config
    first = first_layers(config.tokenizer, config.stem)
    name, num = f"{first[-1]}.weight", config.in_channels
    if name not in state or name not in wanted:
        return []
    given, rest = divmod(state[name][0].numel() * num, wanted[name][0].numel())
    if rest or given == num:
        return []
    if num == 1:
        return adapt_channels(state, wanted, num, "The checkpoint")
    if state[name].ndim == 4:
        try:
            state[name] = adapt_input_conv(num, state[name])
        except NotImplementedError:
            return []  # like timm, which adapts three channels only
    else:
        repeat_window_channels(state, first, given, num)
        if config.tokenizer == "t2t":
            # Attention is scaled by the window's width, which the queries compensate.
            query, *others = state[name].chunk(3)
            state[name] = torch.cat([query * (num / given) ** 0.5, *others])
    return [f"The first layer for {given} channels was adapted to {num}."]


def repeat_window_channels(
    state: StateDict, first: tuple[str, ...], given: int, num: int
) -> None:
    """Repeats the channels of the first soft split's norm and projection."""
    norm, linear = first
    for name in (f"{norm}.weight", f"{norm}.bias", f"{linear}.weight"):
        by_channel = state[name].unflatten(-1, (given, -1))
        repeated = by_channel[..., [each % given for each in range(num)], :]
        state[name] = repeated.flatten(-2)
    state[f"{linear}.weight"] = state[f"{linear}.weight"] * (given / num)
