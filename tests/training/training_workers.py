"""What the processes run that tests start, and kill."""

import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from example_tasks import TwoViews
from torch.distributed.checkpoint import state_dict_saver

from t2t.data import batches
from t2t.data.decoding.decode import decoder_name
from t2t.data.sources import Splits
from t2t.errors import UserError
from t2t.training import (
    checkpoint_writer,
    model_saver,
    retry_write,
    sharding,
    trainer,
)
from t2t.training import (
    train as train_module,
)
from t2t.training.evaluation.evaluate_model import evaluate_model
from t2t.training.logging import metrics_log
from t2t.training.recipe import Recipe
from t2t.training.runtime import Runtime
from t2t.training.train import train

assert TwoViews  # its module registers the tasks of tests
decoder_name()  # imports it, for all forks too
# Nobody makes room on a disk that is full, nor is anything saved elsewhere.
retry_write.WAIT_SECONDS = 0
model_saver.fallback_folders = list
trainer.SAVING_PAYS = 0.0


def train_alone(recipe: Recipe, folder: Path, runtime: Runtime) -> None:
    """Trains as the command does, but for the picture, which takes longer."""
    metrics_log.draw_curves = lambda rows, title, path, metric: path.touch()
    torch.set_num_threads(1)
    train(recipe, folder=folder, runtime=runtime, quiet=True)


def train_and_die(recipe: Recipe, folder: Path, runtime: Runtime, at: str) -> None:
    """Trains until the second checkpoint comes to a function, and is killed in it."""
    module = state_dict_saver if at == "save" else checkpoint_writer
    plain = getattr(module, at)
    calls = []

    def die(*arguments: Any, **options: Any) -> Any:
        calls.append(at)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(*arguments, **options)

    setattr(module, at, die)
    train_alone(recipe, folder, runtime)


def train_together(
    recipe: Recipe,
    folder: Path,
    runtime: Runtime,
    environment: dict[str, str],
    stop_after: int | None,
) -> None:
    """Trains as one of several processes; asked to stop after so many steps."""
    os.environ |= environment
    if stop_after is not None and environment["RANK"] == "1":
        stop_self_after(stop_after)
    train_alone(recipe, folder, runtime)


def train_by_blocks(*arguments: Any) -> None:
    """The same, with each block sharded by itself, as in a large model."""
    sharding.KEPT_BYTES = 0
    train_together(*arguments)


def train_and_note_listing(
    recipe: Recipe, folder: Path, runtime: Runtime, environment: dict[str, str]
) -> None:
    """Trains as one of several processes; those that list the files leave a note."""
    os.environ |= environment
    listing = train_module.open_data

    def noted(recipe: Recipe) -> Splits:
        (folder.parent / f"listed-{environment['RANK']}").touch()
        return listing(recipe)

    train_module.open_data = noted
    train_alone(recipe, folder, runtime)


def train_on_shares(
    recipe: Recipe, folder: Path, runtime: Runtime, environment: dict[str, str]
) -> None:
    """Trains as one of several processes that each read their own images alone."""
    read_apart()
    os.environ |= environment
    train_alone(recipe, folder, runtime)


def read_apart() -> None:
    """Each process reads its own share alone, and meets what is damaged in it."""
    batches.free_bytes = lambda device: 0
    batches._NUM_PROBED = 1


def evaluate_together(
    recipe: Recipe,
    folder: Path,
    runtime: Runtime,
    environment: dict[str, str],
    options: tuple[dict[str, Any], ...],
    into: Path,
) -> None:
    """Evaluates a run as one of several processes; writes the report or the error."""
    read_apart()
    progress: list[tuple[int, int]] = []
    os.environ |= environment
    torch.set_num_threads(1)
    rank = int(environment["RANK"])
    try:
        report = evaluate_model(
            folder,
            device="cpu",
            progress=lambda *numbers: progress.append(numbers),
            **options[rank],
        )
    except UserError as error:
        reported = f"{type(error).__name__}: {error}"
        (into / f"reported-{rank}.txt").write_text(reported)
        return
    if report is not None:
        guesses = report.score.predictions.tolist()
        facts = {**report.as_json(), "guesses": guesses, "progress": progress}
        (into / f"report-{rank}.json").write_text(json.dumps(facts))


def train_while_writing(
    recipe: Recipe,
    folder: Path,
    runtime: Runtime,
    environment: dict[str, str],
    num_steps: int,
    seconds: float,
) -> None:
    """Trains as one of several processes that write checkpoints slowly.

    A checkpoint is written once so many steps have started, or after these seconds.

    Writes down when steps started, and from when to when a checkpoint was written.
    """
    from t2t.training.step import Stepper

    write, plain = state_dict_saver.save, Stepper.start_step
    steps: list[float] = []
    written: list[tuple[float, float]] = []

    def slowly(*arguments: Any, **options: Any) -> Any:
        started = time.monotonic()
        while len(steps) < num_steps and time.monotonic() < started + seconds:
            time.sleep(0.01)
        found = write(*arguments, **options)
        written.append((started, time.monotonic()))
        return found

    def noted(self: Stepper, *given: Any) -> Any:
        steps.append(time.monotonic())
        return plain(self, *given)

    state_dict_saver.save = slowly  # type: ignore[assignment]
    Stepper.start_step = noted  # type: ignore[method-assign]
    os.environ |= environment
    train_alone(recipe, folder, runtime)
    noted_times = {"steps": steps, "written": written}
    into = folder.with_name(f"times-{environment['RANK']}.json")
    into.write_text(json.dumps(noted_times))


def train_without_room(
    recipe: Recipe, folder: Path, runtime: Runtime, environment: dict[str, str]
) -> None:
    """Trains where shards are written slowly, and the model not at all at the end."""
    write = state_dict_saver.save

    def refuse(*_: object, **options: object) -> None:
        raise UserError("There is no room for the model.")

    def slowly(*arguments: Any, **options: Any) -> Any:
        time.sleep(0.3 * int(environment["RANK"]))
        return write(*arguments, **options)

    model_saver.save = refuse  # type: ignore[assignment]
    state_dict_saver.save = slowly  # type: ignore[assignment]
    note_mistake(recipe, folder, runtime, environment)


def train_half_read_only(
    recipe: Recipe, folder: Path, runtime: Runtime, environment: dict[str, str]
) -> None:
    """Trains as one of two processes, the second of which can make no folders."""
    make = Path.mkdir

    def refuse(path: Path, *arguments: Any, **options: Any) -> None:
        if path.name.startswith(".writing-") and environment["RANK"] == "1":
            raise OSError(30, "Read-only file system")
        make(path, *arguments, **options)

    Path.mkdir = refuse  # type: ignore[method-assign]
    os.environ |= environment
    train_alone(recipe, folder, runtime)


def train_until_killed(
    recipe: Recipe,
    folder: Path,
    runtime: Runtime,
    environment: dict[str, str],
    rank: int,
) -> None:
    """Trains as one of several processes, one of which is killed in its fifth step."""
    leave = dist.destroy_process_group

    def leave_when_asked() -> None:
        os.kill(os.getpid(), signal.SIGTERM)  # as torchrun does, which misses one
        leave()

    dist.destroy_process_group = leave_when_asked
    if environment["RANK"] == str(rank):
        stop_self_after(5, signal.SIGKILL)
    note_mistake(recipe, folder, runtime, environment)


def train_and_note_errors(
    recipe: Recipe,
    folder: Path,
    runtime: Runtime,
    environment: dict[str, str],
    into: Path,
) -> None:
    """Trains as one of several processes; writes standard error into a file."""
    os.environ |= environment
    sys.stderr = (into / f"errors-{environment['RANK']}.txt").open("w")
    train_alone(recipe, folder, runtime)


def train_and_stay_behind(
    recipe: Recipe,
    folder: Path,
    runtime: Runtime,
    environment: dict[str, str],
    into: Path,
) -> None:
    """Trains as one of two processes, the second of which hangs before step 6."""
    from t2t.training.step import Stepper

    load = Stepper.load

    def hang(self: Stepper, batches: Any) -> Any:
        for batch in load(self, batches):
            if self.state.step == 5:
                time.sleep(600)
            yield batch

    if environment["RANK"] == "1":
        Stepper.load = hang  # type: ignore[method-assign]
    train_and_note_errors(recipe, folder, runtime, environment, into)


def train_apart(
    recipe: Recipe, folder: Path, runtime: Runtime, environment: dict[str, str]
) -> None:
    """Trains as one of several processes, each with a folder of its own."""
    own = folder.with_name(f"{folder.name}-{environment['RANK']}")
    note_mistake(recipe, own, runtime, environment)


def train_otherwise(
    recipe: Recipe, folder: Path, runtime: Runtime, environment: dict[str, str]
) -> None:
    """Trains as one of several processes, the others of which have another recipe."""
    seed = int(environment["RANK"])
    note_mistake(replace(recipe, seed=seed), folder, runtime, environment)


def note_mistake(
    recipe: Recipe, folder: Path, runtime: Runtime, environment: dict[str, str]
) -> None:
    """Trains as one of several processes; writes down what it is reported."""
    os.environ |= environment
    try:
        train_alone(recipe, folder, runtime)
    except UserError as error:
        reported = folder.with_name(f"reported-{environment['RANK']}.txt")
        reported.write_text(f"{type(error).__name__}: {error}")


def stop_self_after(num_steps: int, number: int = signal.SIGTERM) -> None:
    """Lets this process send itself a signal after so many steps."""
    from t2t.training.step import Stepper

    plain = Stepper.start_step

    def step(self: Stepper, *given: Any) -> Any:
        pending = plain(self, *given)
        if self.state.step == num_steps:
            os.kill(os.getpid(), number)
        return pending

    Stepper.start_step = step  # type: ignore[method-assign]


def train_after_a_kill(
    recipe: Recipe, folder: Path, runtime: Runtime, into: Path
) -> None:
    """Trains as torchrun's process; at first, the second one is killed in step 8."""
    restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
    if os.environ["RANK"] == "1" and restarts == "0":
        stop_self_after(8, signal.SIGKILL)
    elif restarts != "0":
        (into / f"restarts-{restarts}").touch()
    train_alone(recipe, folder, runtime)
