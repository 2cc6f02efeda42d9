"""Finds the model of the zoo that weights belong to, by names and shapes."""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from torch import Size as Shape
from torch import Tensor

from t2t.errors import UserError
from t2t.models.checkpoint_io.adapt import shorten
from t2t.models.checkpoint_io.heads import HEADS
from t2t.models.checkpoint_io.name_from_file import choose_by_name
from t2t.models.checkpoint_io.published import POSITIONS, StateDict
from t2t.models.config import ModelConfig
from t2t.models.token_grid import Grid, guess_grid
from t2t.models.vit import VisionTransformer
from t2t.models.without_weights import without_weights
from t2t.models.zoo import CONFIGS


def identify(state: StateDict, hint: str, origin: str) -> tuple[str, ModelConfig, str]:
    """The name and config of the model that tensors belong to, and a note.

    If the shapes match several models, the hint decides, else the first in the zoo; the
    note then names the others and how to select them.
    """
    norm = state.get("encoder.blocks.0.norm1.weight")
    if norm is None:
        raise UserError(
            f"{origin} is not of t2t, nor a published T2T-ViT, ViT or DeiT: it holds "
            f"{shorten(list(state))}. If it is of a timm model, name that: --model "
            "resnet50, in t2t train --set model=resnet50, for a teacher --set "
            "task_args.teacher_model=resnet50, in Python model='resnet50'."
        )
    dim, depth = len(norm), num_blocks(state)
    fitting = [
        name
        for name, config in CONFIGS.items()
        if (config.dim, config.depth) == (dim, depth) and matches(state, config)
    ]
    if not fitting:
        raise UserError(
            f"{origin} holds {depth} blocks of width {dim}, and no model of the zoo "
            "has all its tensors in these shapes; name the nearest with model= to see "
            "what differs, or give model= a ModelConfig."
        )
    # Among variants for several image sizes, the file's size comes first.
    fitting.sort(
        key=lambda name: (
            table_grid(CONFIGS[name], state) not in (None, grid_for(CONFIGS[name]))
        )
    )
    name, decided = choose_by_name(fitting, hint)
    config = config_for_file(CONFIGS[name], state, origin)
    others = [
        other
        for other in fitting
        if other != name and config_for_file(CONFIGS[other], state, origin) != config
    ]
    if decided or not others:
        return name, config, ""
    have = "has" if len(others) == 1 else "have"
    return (
        name,
        config,
        f"It was identified as {name} by its shapes, but {', '.join(others)} {have} "
        f"the same shapes; pass model={others[0]} if it is that.",
    )


def matches(state: StateDict, config: ModelConfig) -> bool:
    """Whether tensors have a model's names and shapes, except heads and image size."""
    wanted = body(meta_model(config).state_dict())
    given = body(state)
    if config.positions == "sinusoid":
        # Published files store what we compute.
        given.pop(POSITIONS, None)
    return given == wanted


def body(state: Mapping[str, Tensor]) -> dict[str, Shape | None]:
    """Shapes by name without the heads, and without the shapes of what can resize."""
    return {
        name: None if ".positions." in name or ".shorten." in name else tensor.shape
        for name, tensor in state.items()
        if not name.startswith(HEADS)
    }


@cache
def meta_model(config: ModelConfig) -> VisionTransformer:
    """A model whose tensors have shapes and no values."""
    with without_weights():
        return VisionTransformer(config)


def num_blocks(state: Mapping[str, Tensor]) -> int:
    """The number of blocks in a state dict."""
    numbers = {re.match(r"encoder\.blocks\.(\d+)\.", name) for name in state}
    return len({found[1] for found in numbers if found})


def config_for_file(config: ModelConfig, state: StateDict, origin: str) -> ModelConfig:
    """The config with the number of classes and the image size of the file."""
    head = state.get("head.weight")
    config = replace(config, num_classes=0 if head is None else len(head))
    own, given = grid_for(config), table_grid(config, state)
    if given is None or given == own:
        return config
    height, width = (
        round(side * new / old)
        for side, new, old in zip(config.image_size, given, own, strict=True)
    )
    config = replace(config, image_size=(height, width))
    if grid_for(config) != given:
        raise UserError(
            f"{origin} has positions for {given[0]}×{given[1]} tokens; give the "
            "image_size that it was trained at."
        )
    return config


def grid_for(config: ModelConfig) -> Grid:
    """The token grid of a config's image size."""
    return meta_model(config).tokenizer.grids(config.image_size)[-1]


def table_grid(config: ModelConfig, state: StateDict) -> Grid | None:
    """The grid of the position table in a file, if it has one."""
    table = state.get(POSITIONS)
    if table is None:
        return None
    return guess_grid(len(table) - config.num_prefix_tokens, grid_for(config))
