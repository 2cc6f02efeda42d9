"""Interpolates positions and projections from one token grid to another."""

from dataclasses import replace
from itertools import chain
from typing import Any, TypeVar

import torch

from t2t.models.blocks import Block
from t2t.models.checkpoint_io.published import StateDict
from t2t.models.config import ModelConfig, Size
from t2t.models.layers import SequenceProjection
from t2t.models.positions import FixedPositions, Positions, SinusoidPositions, sinusoid
from t2t.models.token_grid import Grid
from t2t.models.vit import VisionTransformer

GridPart = Positions | SequenceProjection
"""Parts whose tensors depend on the token grid."""
Part = TypeVar("Part", Positions, SequenceProjection)


def adapt_grid(
    state: StateDict, model: VisionTransformer, source: ModelConfig | None
) -> tuple[list[str], bool]:
    """Adapts what depends on the grid; returns notes, and if positions become fixed.

    A sinusoid counts tokens row by row: computed anew for another grid it would mean
    other rows to trained layers, so it is interpolated like a learned table.
    """
    old: list[Grid] = []
    if source is not None:
        first = model.tokenizer.grids(source.image_size)[-1]
        old = model.encoder.grids(first)
        if source.positions == "sinusoid":
            write_sinusoids(state, model, old)
    notes = set()
    for prefix, module in model.named_modules():
        if not isinstance(module, Positions | SequenceProjection):
            continue
        likely = old[layer_of(prefix)] if old else None
        before = resize_part(state, f"{prefix}.", module, likely)
        is_positions = isinstance(module, Positions)
        what = "Positions" if is_positions else "Linformer's projections"
        if before and before != module.grid:
            notes.add(
                f"{what} were interpolated from {before[0]}×{before[1]} to "
                f"{module.grid[0]}×{module.grid[1]} tokens."
            )
    fixes = model.config.positions == "sinusoid" and not drop_sinusoids(state, model)
    if fixes and not notes:
        notes.add("Its positions, which are not the sinusoid, were kept.")
    return sorted(notes), fixes


def layer_of(name: str) -> int:
    """The number of the block, or of the table, in the name of a part of the grid."""
    return next(int(part) for part in name.split(".") if part.isdecimal())


def resize_part(
    state: StateDict, prefix: str, part: GridPart, old: Grid | None
) -> Grid | None:
    """Interpolates the tensors of a part in place; returns the grid they were for."""
    own = {
        name.removeprefix(prefix): tensor
        for name, tensor in state.items()
        if name.startswith(prefix)
    }
    before = part.resize_state(own, old or part.grid)
    state.update({prefix + name: tensor for name, tensor in own.items()})
    return before


def write_sinusoids(
    state: StateDict, model: VisionTransformer, grids: list[Grid]
) -> None:
    """Adds the sinusoids that weights were trained with, if they are not stored."""
    if model.config.positions not in ("sinusoid", "fixed"):
        return
    for number, positions in enumerate(model.encoder.positions.tables):
        rows, columns = grids[number]
        num_tokens = model.config.num_prefix_tokens + rows * columns
        table = positions.table
        assert isinstance(table, torch.Tensor)
        name = f"encoder.positions.tables.{number}.table"
        if name not in state:
            state[name] = sinusoid(num_tokens, table.shape[1])


def drop_sinusoids(state: StateDict, model: VisionTransformer) -> bool:
    """Removes tables that equal the computed ones; returns whether all do."""
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


def fixed_tables(model: VisionTransformer) -> StateDict:
    """The tables of a model's sinusoids, under the names that fixed ones have."""
    return {
        f"encoder.positions.tables.{number}.table": positions.table
        for number, positions in enumerate(model.encoder.positions.tables)
        if isinstance(positions, SinusoidPositions)
    }


def set_image_size(model: VisionTransformer, image_size: Size) -> None:
    """Changes the image size of a model in place, like loading it for that size."""
    grids = model.encoder.grids(model.tokenizer.grids(image_size)[-1])
    changes: dict[str, Any] = {"image_size": image_size}
    tables = model.encoder.positions.tables
    if grids[0] != tables[0].grid:
        if model.config.positions == "sinusoid":
            changes["positions"] = "fixed"
        for number, positions in enumerate(tables):
            assert isinstance(positions, Positions)
            tables[number] = resized_positions(positions, grids[number])
        for block, grid in zip(model.encoder.blocks, grids, strict=True):
            assert isinstance(block, Block)
            shorten = getattr(block.mixer, "shorten", None)
            if shorten is not None:
                block.mixer.shorten = resized_projection(shorten, grid)
    model.config = replace(model.config, **changes)


def resized_positions(positions: Positions, grid: Grid) -> Positions:
    """Positions interpolated to another grid; a sinusoid becomes a fixed table."""
    sinusoid = isinstance(positions, SinusoidPositions)
    kind = FixedPositions if sinusoid else type(positions)
    other = kind(positions.dim, positions.num_prefix, grid, positions.num_heads)
    state = dict(positions.state_dict())
    if isinstance(positions, SinusoidPositions):
        state["table"] = positions.table
    return load_resized(other, state, positions)


def resized_projection(
    projection: SequenceProjection, grid: Grid
) -> SequenceProjection:
    """Linformer's projection of keys and values, interpolated to another grid."""
    num_kept = len(projection.keys)
    other = SequenceProjection(projection.num_prefix, grid, num_kept)
    return load_resized(other, dict(projection.state_dict()), projection)


def load_resized(other: Part, state: StateDict, original: Part) -> Part:
    """Loads the original's tensors, resized, with its device, dtype and mode."""
    other.resize_state(state, original.grid)
    other.load_state_dict(state)
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
