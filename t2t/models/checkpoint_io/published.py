"""Translates the tensor names of published checkpoints to ours."""

import re
from bisect import bisect_right
from collections.abc import Mapping

import torch
from torch import Tensor

StateDict = dict[str, Tensor]

POSITIONS = "encoder.positions.tables.0.table"
STEP = r"^tokens_to_token\.attention(\d+)\."
BLOCK = r"^blocks\.(\d+)\."
UNUSED = r"^aux_head\.|(?:^|\.)total_(?:ops|params)$"
WHY_UNUSED = "token labelling's head and profiler counters are not part of the model"

# The first pattern that matches renames the start of a name; a name that none matches
# is ours already, or unknown, and is kept.
RENAMES = [
    (r"^pos_embed$", POSITIONS),
    (r"^head_dist\.", r"distillation_head."),
    # Patches, by timm's names.
    (r"^patch_embed\.proj\.", r"tokenizer.project."),
    # Token transformers. The Performer's hold attention and MLP flat, softmax's nested.
    (STEP + r"w$", r"tokenizer.steps.\1.features"),
    (STEP + r"(?:attn\.)?(?:kqv|qkv)\.", r"tokenizer.steps.\1.qkv."),
    (STEP + r"(?:attn\.)?proj\.", r"tokenizer.steps.\1.proj."),
    (STEP + r"mlp\.(?:0|fc1)\.", r"tokenizer.steps.\1.mlp.expand.0."),
    (STEP + r"mlp\.(?:2|fc2)\.", r"tokenizer.steps.\1.mlp.reduce."),
    (STEP, r"tokenizer.steps.\1."),
    (r"^tokens_to_token\.soft_split(\d)\.", r"tokenizer.convolutions.\1."),
    (r"^tokens_to_token\.", r"tokenizer."),
    # Squeeze-and-excitation.
    (BLOCK + r"attn\.se_layer\.fc\.0\.", r"encoder.blocks.\1.mixer.gate.squeeze."),
    (BLOCK + r"attn\.se_layer\.fc\.2\.", r"encoder.blocks.\1.mixer.gate.excite."),
    # Ghost layers.
    (BLOCK + r"attn\.([qkv])\.", r"encoder.blocks.\1.mixer.qkv.\2.linear."),
    (
        BLOCK + r"attn\.cheap_operation_([qkv])\.weight$",
        r"encoder.blocks.\1.mixer.qkv.\2.scales.0",
    ),
    (
        BLOCK + r"mlp\.cheap_operation2\.weight$",
        r"encoder.blocks.\1.mlp.expand.scales.0",
    ),
    (
        BLOCK + r"mlp\.cheap_operation3\.weight$",
        r"encoder.blocks.\1.mlp.expand.scales.1",
    ),
    # Dense wiring: what narrows a block's output, and what halves a stage's width.
    (BLOCK + r"dense_linear\.", r"encoder.blocks.\1.narrow."),
    (BLOCK + r"linear\.", r"encoder.blocks.\1.halve."),
    # What every block has.
    (BLOCK + r"attn\.", r"encoder.blocks.\1.mixer."),
    (BLOCK + r"mlp\.fc1\.", r"encoder.blocks.\1.mlp.expand.0."),
    (BLOCK + r"mlp\.fc2\.", r"encoder.blocks.\1.mlp.reduce."),
    (r"^blocks\.", r"encoder.blocks."),
]


def translate(published: Mapping[str, Tensor]) -> StateDict:
    """Published tensors by our names and in our shapes; ours are unchanged."""
    state: StateDict = {}
    for name, tensor in number_dense_blocks(published).items():
        if not is_unused(name):
            state[rename(name)] = tensor
    join_prefix_tokens(state)
    name_ghost_layers(state)
    # Steps are counted from 1 in published names, and only there.
    if any(name.startswith("tokens_to_token.attention") for name in published):
        state = {count_step_from_zero(name): value for name, value in state.items()}
    if "tokenizer.convolutions.0.weight" in state:
        rename_prefix(state, "tokenizer.project.", "tokenizer.convolutions.2.")
    if "pos_embed" in published:
        state[POSITIONS] = state[POSITIONS].flatten(0, -2)
    return state


def is_unused(name: str) -> bool:
    """Whether a tensor is not part of the model, such as a profiler's counter."""
    return re.search(UNUSED, name) is not None


def rename(name: str) -> str:
    """Our name of one published tensor, its numbers still as published."""
    for pattern, ours in RENAMES:
        renamed, fits = re.subn(pattern, ours, name)
        if fits:
            return renamed
    return name


def number_dense_blocks(published: Mapping[str, Tensor]) -> StateDict:
    """Renumbers blocks: a published transition counts as a block, ours does not."""
    transitions = sorted(
        {
            int(found[1])
            for name in published
            if (found := re.match(BLOCK + r"linear\.", name))
        }
    )

    def ours(found: re.Match[str]) -> str:
        number = int(found[1])
        # A transition belongs to the block before it.
        return f"blocks.{number - bisect_right(transitions, number)}."

    return {re.sub(BLOCK, ours, name): value for name, value in published.items()}


def join_prefix_tokens(state: StateDict) -> None:
    """Joins class and distillation token into one parameter."""
    tokens = [state.pop(name) for name in ("cls_token", "dist_token") if name in state]
    if tokens:
        state["prefix"] = torch.cat(tokens, dim=1)


def name_ghost_layers(state: StateDict) -> None:
    """Renames the linear layer inside ghost layers, and flattens their scales."""
    for name in [name for name in state if re.search(r"\.scales\.\d+$", name)]:
        state[name] = state[name].flatten()
        layer = name[: name.index("scales.")]
        rename_prefix(state, f"{layer}0.", f"{layer}linear.")


def rename_prefix(state: StateDict, old: str, new: str) -> None:
    """Replaces a prefix of names."""
    for name in [name for name in state if name.startswith(old)]:
        state[new + name.removeprefix(old)] = state.pop(name)


def count_step_from_zero(name: str) -> str:
    """`tokenizer.steps.1` of a published name is our step 0."""
    return re.sub(
        r"^tokenizer\.steps\.(\d+)",
        lambda found: f"tokenizer.steps.{int(found[1]) - 1}",
        name,
    )
