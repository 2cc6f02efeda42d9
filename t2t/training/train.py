"""`train`: sets up a run, and trains it from its start or its last checkpoint."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from t2t.data.class_balance import is_uneven
from t2t.data.sources import Splits
from t2t.errors import LocalError, UserError
from t2t.log_level import prints_info
from t2t.models.shards import is_sharded
from t2t.training.changed_tables import note_on_tables
from t2t.training.check_names import check_names
from t2t.training.checkpoint import find_checkpoint
from t2t.training.compile_policy import earlier_decision, first_decision
from t2t.training.distributed import (
    PARALLELISMS,
    World,
    broadcast_from_main,
    check_same_on_all,
    init_distributed,
)
from t2t.training.evaluation.check_scoring import check_scoring
from t2t.training.loaders import open_data
from t2t.training.logging.console import RunConsole
from t2t.training.logging.run_logger import RunLogger
from t2t.training.logging.stage import stage
from t2t.training.machine_sharing import made_once_per_machine
from t2t.training.pictures import draw_pictures
from t2t.training.recipe import Recipe
from t2t.training.rendezvous import is_peer_lost
from t2t.training.result import Result
from t2t.training.run_folder import RunFolder
from t2t.training.runtime import (
    Runtime,
    make_deterministic,
    resolve_runtime,
    runtime_settings,
    shared_settings,
)
from t2t.training.stop_signals import StopSignals
from t2t.training.threads import choose_threads, threads_of_run, use_threads
from t2t.training.trainer import Trainer

__all__ = ["Result", "Runtime", "Trainer", "train"]


def train(
    recipe: Recipe,
    *,
    data: str | Path | None = None,
    folder: str | Path | None = None,
    runtime: Runtime | None = None,
    fresh: bool = False,
    quiet: bool = False,
    splits: Splits | None = None,
    notes: Sequence[str] = (),
    started: float | None = None,
    is_timed: bool = False,
) -> Result:
    """Trains a recipe into a folder; the same call resumes an interrupted run.

    `runtime` sets device and precision, `fresh` starts over, `quiet` prints nothing,
    `splits` are the recipe's images if the caller has opened them already, `notes`
    are sentences for the log at the start of the run, `started` is the time of the
    command by `time.monotonic()`, and `is_timed` says that the notes state the time
    that the run takes.
    """
    started = time.monotonic() if started is None else started
    if data is not None:
        recipe = replace(recipe, data=str(data))
    path = folder or Path("runs") / run_name(recipe)
    run_folder = RunFolder(Path(os.path.expanduser(path)))
    runtime = runtime or Runtime()
    with (
        # Outermost: torchrun sends SIGTERM to processes that still have to report.
        StopSignals() as stop,
        init_distributed(runtime.device, hang_minutes=runtime.hang_minutes) as world,
        ExitStack() as exits,
    ):
        runtime = resolve_runtime(runtime, world)
        make_deterministic(runtime)
        check_names(recipe)
        recipe.augmentation.mix_group_for(recipe.batch_size // world.size)

        def claim_folder() -> dict[str, Any] | None:
            exits.enter_context(run_folder.hold())
            return check_folder(run_folder, recipe, fresh)

        finished = broadcast_from_main(world, claim_folder)
        if finished is not None:
            return finished_result(run_folder, recipe, finished)
        silent = quiet or not (world.is_main and prints_info())
        console = RunConsole(quiet=silent, highlight=False)
        if splits is None:
            with stage(console, f"Reading {recipe.data}"):
                splits = made_once_per_machine(world, lambda: open_data(recipe))
        check_same_on_all(world, shared_settings(recipe, runtime, world, splits, fresh))
        logger = exits.enter_context(
            RunLogger(
                run_folder,
                recipe,
                world,
                quiet=quiet,
                has_labels=splits.val.is_labelled,
                has_uneven_classes=is_uneven(splits.val),
            )
        )
        logger.clock.started = started
        checkpoint = None if fresh else newest_checkpoint(run_folder, world, logger)
        compiling = first_decision(runtime, world)
        if checkpoint is not None and not compiling.is_made:
            compiling = broadcast_from_main(
                world, lambda: earlier_decision(run_folder.path)
            )
        settings = {**runtime_settings(runtime), **compiling.settings()}
        if world.device.type == "cpu":
            before = threads_of_run(run_folder.path) if checkpoint else None
            threads = choose_threads(runtime.threads, before)
            exits.enter_context(use_threads(threads))
            settings["threads"] = threads.number
            notes = (*notes, str(threads))
        trainer = Trainer(
            recipe, runtime, world, run_folder, splits, logger, checkpoint, compiling
        )
        # Graphs rehearse an evaluation; shards can only be used after a step.
        if not (trainer.stepper.uses_graphs or is_sharded(trainer.task)):
            check_scoring(recipe, trainer.state, world, runtime.dtype)
        # Everything is built: mistakes in the recipe have raised their errors by now.
        broadcast_from_main(world, lambda: write_start(trainer, settings, fresh))
        if PARALLELISMS[runtime.parallelism]:
            run_folder.check_visible(world)
        return run_trainer(trainer, stop, notes, is_timed)


def check_folder(
    run_folder: RunFolder, recipe: Recipe, fresh: bool
) -> dict[str, Any] | None:
    """Checks that a folder can hold this run; returns its result if it has finished."""
    run_folder.check(recipe, fresh)
    run_folder.remove_partial_files()
    if fresh or not run_folder.has_started():
        recipe.check_weights()
    finished = None if fresh else run_folder.result()
    if finished is not None:
        run_folder.check_model()
    return finished


def finished_result(
    run_folder: RunFolder, recipe: Recipe, summary: dict[str, Any]
) -> Result:
    """The result of a run that was finished before."""
    note = note_on_tables(run_folder.path, recipe)
    notes = (note,) if note else ()
    return Result(run_folder.path, True, summary, already_finished=True, notes=notes)


def newest_checkpoint(
    run_folder: RunFolder, world: World, logger: RunLogger
) -> Path | None:
    """The checkpoint to resume from; warns if a run that has started has none."""
    checkpoint = find_checkpoint(run_folder.checkpoints, world, logger.warn)
    if checkpoint is None and run_folder.has_started():
        logger.warn(
            f"There is no checkpoint in {run_folder.checkpoints}: training starts "
            "again from step 0."
        )
    return checkpoint


def write_start(trainer: Trainer, settings: dict[str, Any], fresh: bool) -> None:
    """Writes the recipe and the environment into the run folder."""
    loaded, run_folder = trainer.state.loaded, trainer.run_folder
    checksum = None if loaded is None else loaded.checksum
    kept = run_folder.with_checksum(trainer.recipe, checksum)
    run_folder.start(kept, settings, trainer.world, fresh)


def run_trainer(
    trainer: Trainer, stop: StopSignals, notes: Sequence[str], is_timed: bool
) -> Result:
    """Trains until the run is finished or stopped."""
    with trainer.writer, explain_out_of_memory(trainer), trainer.watch:
        try:
            result = trainer.run(stop, notes, is_timed)
            if result.finished:
                draw_pictures(trainer)
            return replace(result, stop_requested=stop.received)
        except Exception as error:
            if isinstance(error, LocalError):
                trainer.save_before_giving_up()
            known = isinstance(error, UserError | torch.OutOfMemoryError)
            if known or is_peer_lost(error) or not stop.received:
                raise
            # Ctrl-C also kills compiler processes that the first step waits for.
            logger = trainer.logger
            logger.warn(f"Stopped within a step ({type(error).__name__}).")
            summary = logger.summary(trainer.state)
            return Result(trainer.run_folder.path, False, summary)


@contextmanager
def explain_out_of_memory(trainer: Trainer) -> Iterator[None]:
    """Turns an out-of-memory error into advice."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        world = trainer.world
        per_process = trainer.recipe.batch_size // world.size
        num_images = min(trainer.runtime.micro_batch or per_process, per_process)
        advice = (
            f"add --micro-batch {max(1, num_images // 2)}, which computes "
            "the step in parts (the same except for dropout, stochastic depth "
            "and batch norm)"
        )
        if trainer.task.needs_whole_batch:
            advice = f"set batch_size={trainer.recipe.batch_size // 2}"
        raise LocalError(
            f"{world.device} ran out of memory with {num_images} images "
            f"at once: {advice}, or choose smaller images or a smaller model."
            + (" Its checkpoints are kept." * bool(trainer.last_checkpoint))
        ) from error


def run_name(recipe: Recipe) -> str:
    """The name of a recipe's folder."""
    return recipe.name if recipe.seed == 0 else f"{recipe.name}-seed{recipe.seed}"
