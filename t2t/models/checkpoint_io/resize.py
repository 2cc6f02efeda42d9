"""Positions and projections of one token grid, interpolated for another."""

import math
from dataclasses import replace
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import nn

from t2t.models.blocks import Block
from t2t.models.checkpoint_io.published import State
from t2t.models.config import ModelConfig, Size
from t2t.models.layers import SequenceProjection, resize_projection
from t2t.models.positions import (
    AxisPositions,
    FixedPositions,
    Grid,
    NoPositions,
    RelativePositions,
    SinusoidPositions,
    resize_axis,
    resize_offsets,
    resize_tokens,
    sinusoid,
)
from t2t.models.vit import VisionTransformer

Part = TypeVar("Part", bound=nn.Module)


def fit_grid(
    state: State, model: VisionTransformer, source: ModelConfig | None
) -> tuple[list[str], bool]:
    """Changes all that depends on the grid; says what, and if positions become fixed.

    A sinusoid counts tokens row by row: computed afresh for another grid it would tell
    trained layers wrong rows, so it is interpolated like a learned table.
    """
    old = None if source is None else model.tokenizer.grids(source.image_size)[-1]
    if old and source and source.positions == "sinusoid":
        write_sinusoids(state, model, old)
    notes = set()
    for front, module in model.named_modules():
        if isinstance(module, NoPositions):
            before = resize_positions(state, front, module, old)
            what = "Positions"
        elif isinstance(module, SequenceProjection):
            before = resize_projections(state, front, module, old)
            what = "Linformer's projections"
        else:
            continue
        if before and before != module.grid:
            notes.add(
                f"{what} were interpolated from {before[0]}×{before[1]} to "
                f"{module.grid[0]}×{module.grid[1]} tokens."
            )
    fixes = model.config.positions == "sinusoid" and not drop_sinusoids(state, model)
    if fixes and not notes:
        notes.add("Its positions, which are not the sinusoid, were kept.")
    return sorted(notes), fixes


def resize_positions(
    state: State, front: str, positions: NoPositions, old: Grid | None
) -> Grid | None:
    """Interpolates positions in place and gives the grid they were for."""
    new = positions.grid
    if isinstance(positions, SinusoidPositions | FixedPositions):
        if (table := state.get(f"{front}.table")) is None:
            return None
        before = guess_grid(len(table) - positions.num_prefix, old or new)
        if before and before != new:
            state[f"{front}.table"] = resize_tokens(
                table.float(), positions.num_prefix, before, new
            )
        return before
    if isinstance(positions, AxisPositions) and f"{front}.rows" in state:
        rows, columns = state[f"{front}.rows"], state[f"{front}.columns"]
        state[f"{front}.rows"] = resize_axis(rows.float(), new[0])
        state[f"{front}.columns"] = resize_axis(columns.float(), new[1])
        return len(rows), len(columns)
    if isinstance(positions, RelativePositions) and f"{front}.offsets" in state:
        offsets = state[f"{front}.offsets"]
        state[f"{front}.offsets"] = resize_offsets(offsets.float(), new)
        return (offsets.shape[1] + 1) // 2, (offsets.shape[2] + 1) // 2
    return None


def resize_projections(
    state: State, front: str, projection: SequenceProjection, old: Grid | None
) -> Grid | None:
    """Interpolates what keys and values are mixed by, and gives the grid it was for."""
    before = None
    for name in (f"{front}.keys", f"{front}.values"):
        if name not in state:
            continue
        num_spatial = state[name].shape[1] - projection.num_prefix
        before = guess_grid(num_spatial, old or projection.grid)
        if before and before != projection.grid:
            state[name] = resize_projection(
                state[name].float(), projection.num_prefix, before, projection.grid
            )
    return before


def guess_grid(num_tokens: int, likely: Grid) -> Grid | None:
    """The likely grid if it has so many tokens, else a square one."""
    if num_tokens == likely[0] * likely[1]:
        return likely
    side = math.isqrt(max(0, num_tokens))
    return (side, side) if side and side * side == num_tokens else None


def write_sinusoids(state: State, model: VisionTransformer, grid: Grid) -> None:
    """Adds the sinusoids that weights were trained with, where they do not hold any."""
    if model.config.positions not in ("sinusoid", "fixed"):
        return
    num_tokens = model.config.num_prefix_tokens + grid[0] * grid[1]
    for number, positions in enumerate(model.encoder.positions.tables):
        table = positions.table
        assert isinstance(table, torch.Tensor)
        name = f"encoder.positions.tables.{number}.table"
        if name not in state:
            state[name] = sinusoid(num_tokens, table.shape[1])


def drop_sinusoids(state: State, model: VisionTransformer) -> bool:
    """Leaves out tables that the model computes anyway, if all of them are such."""
    own = fixed_tables(model)
    given = {name: state[name] for name in own if name in state}
    for name, table in given.items():
        expected = own[name].to(table.device)
        tolerance = 4 * max(torch.finfo(each.dtype).eps for each in (table, expected))
        if table.shape != expected.shape or not torch.allclose(
            table.float(), expected.float(), rtol=0, atol=tolerance
        ):
            return False
    for name in given:
        del state[name]
    return True


def fixed_tables(model: VisionTransformer) -> State:
    """The tables of a model's sinusoids, under the names that fixed ones have."""
    return {
        f"encoder.positions.tables.{number}.table": positions.table
        for number, positions in enumerate(model.encoder.positions.tables)
        if isinstance(positions, SinusoidPositions)
    }


def set_image_size(model: VisionTransformer, image_size: Size) -> None:
    """Changes the image size of a model in place, like loading it for that size."""
    grid = model.tokenizer.grids(image_size)[-1]
    changes: dict[str, Any] = {"image_size": image_size}
    tables = model.encoder.positions.tables
    if grid != tables[0].grid:
        if model.config.positions == "sinusoid":
            changes["positions"] = "fixed"
        for number, positions in enumerate(tables):
            assert isinstance(positions, NoPositions)
            tables[number] = resized_positions(positions, grid)
        for block in model.encoder.blocks:
            assert isinstance(block, Block)
            if block.mixer.shorten is not None:
                block.mixer.shorten = resized_projection(block.mixer.shorten, grid)
    model.config = replace(model.config, **changes)


def resized_positions(positions: NoPositions, grid: Grid) -> NoPositions:
    """Positions interpolated to another grid; a sinusoid becomes a fixed table."""
    sinusoid = isinstance(positions, SinusoidPositions)
    kind = FixedPositions if sinusoid else type(positions)
    other = kind(positions.dim, positions.num_prefix, grid, positions.num_heads)
    state = {f".{name}": each for name, each in positions.state_dict().items()}
    if isinstance(positions, SinusoidPositions):
        state[".table"] = positions.table
    resize_positions(state, "", other, positions.grid)
    return load_like(other, state, positions)


def resized_projection(
    projection: SequenceProjection, grid: Grid
) -> SequenceProjection:
    """Linformer's projection of keys and values, interpolated to another grid."""
    num_kept = len(projection.keys)
    other = SequenceProjection(projection.num_prefix, grid, num_kept)
    state = {f".{name}": each for name, each in projection.state_dict().items()}
    resize_projections(state, "", other, projection.grid)
    return load_like(other, state, projection)


def load_like(other: Part, state: State, original: nn.Module) -> Part:
    """Loads tensors into `other`, with device, dtype and mode of the original."""
    other.load_state_dict({name[1:]: tensor for name, tensor in state.items()})
    frozen = {n for n, each in original.named_parameters() if not each.requires_grad}
    for name, parameter in other.named_parameters():
        parameter.requires_grad_(name not in frozen)
    near = next(chain(original.parameters(), original.buffers()), None)
    if near is not None:
        other.to(near.device, near.dtype if near.is_floating_point() else None)
    return other.train(original.training)


def fix_positions(model: VisionTransformer) -> None:
    """Replaces computed sinusoids by tables that are saved with the weights."""
    tables = model.encoder.positions.tables
    for number, positions in enumerate(tables):
        assert isinstance(positions, SinusoidPositions)
        fixed = FixedPositions(
            positions.dim, positions.num_prefix, positions.grid, model.config.num_heads
        )
        tables[number] = fixed.to(positions.table)
    model.config = replace(model.config, positions="fixed")
