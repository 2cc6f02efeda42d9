"""Runs a study: every arm with every seed, each in its own run folder."""

import gc
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile

import torch

from t2t.data.sources import Splits
from t2t.errors import UserError
from t2t.lab.output_dir import writing_into
from t2t.lab.studies.report import write
from t2t.lab.studies.results import StudyResult, costs_of, finished, gather, run_folder
from t2t.lab.studies.study import Study
from t2t.training.loaders import open_data
from t2t.training.recipe import Recipe
from t2t.training.run_folder import RunFolder
from t2t.training.runtime import Runtime
from t2t.training.train import train


def run_study(
    study: Study,
    seeds: Sequence[int],
    folder: Path,
    *,
    only: tuple[str, ...] = (),
    runtime: Runtime | None = None,
    warn: Callable[[str], None] = print,
    quiet: bool = False,
) -> StudyResult:
    """Trains the runs that are missing and writes the table after every run.

    Runs are in `folder`/runs and are shared by all studies there; table, numbers and
    picture are in `folder`/NAME. The same call resumes an interrupted study. A run that
    fails is reported and skipped.
    """
    names = study.chosen(only)
    _ = study.metric  # an error before training, if the arms cannot be compared
    num_classes = len(open_data(study.arms[names[0]]).train.classes)
    costs = costs_of(study, num_classes)
    errors: dict[tuple[str, int], str] = {}
    so_far = partial(gather, study, seeds, folder, costs, num_classes, errors)
    # All seeds of an arm before the next arm: they share compiled code.
    runs = [(name, seed) for name in names for seed in seeds]
    check_folders(study, runs, folder)
    if any(finished(folder, study.arms[name], seed) is None for name, seed in runs):
        # A folder that cannot be written is one error, not one per run.
        with writing_into(folder, "name another --folder"):
            TemporaryFile(dir=folder).close()
    compiled_for = ""
    opened: dict[tuple[object, ...], Splits] = {}
    for number, (name, seed) in enumerate(runs, start=1):
        recipe = study.arms[name]
        if finished(folder, recipe, seed) is not None:
            continue
        if name != compiled_for:
            reset_compiler()
            compiled_for = name
        warn(f"{study.name}: arm {name}, seed {seed} (run {number} of {len(runs)})")
        seeded = replace(recipe, seed=seed)
        try:
            result = train(
                seeded,
                folder=run_folder(folder, recipe, seed),
                runtime=runtime,
                quiet=quiet,
                splits=open_once(seeded, opened),
            )
        except UserError as error:
            errors[name, seed] = str(error)
            warn(f"{study.name}: arm {name}, seed {seed} failed. {error}")
            compiled_for = ""  # frees its memory
            continue
        if not result.finished:
            break
        try:
            write(so_far(), folder / study.name)
        except UserError as error:  # may be fixed before the last run ends
            warn(str(error))
        if result.stop_requested:
            break
    study_result = so_far()
    if study_result.arms:
        write(study_result, folder / study.name)
    return study_result


def open_once(recipe: Recipe, opened: dict[tuple[object, ...], Splits]) -> Splits:
    """The data of a run; opened once for all runs, so small sets are decoded once."""
    found = open_data(recipe)
    # With a holdout, the validation images depend on the seed.
    held_out = (recipe.holdout, recipe.seed if recipe.holdout else 0)
    return opened.setdefault((recipe.data, found.description, *held_out), found)


def check_folders(study: Study, runs: Sequence[tuple[str, int]], folder: Path) -> None:
    """Raises an error if a run folder holds another recipe, before training."""
    for name, seed in runs:
        recipe = study.arms[name]
        run = RunFolder(run_folder(folder, recipe, seed))
        run.check_same(replace(recipe, seed=seed))


def reset_compiler() -> None:
    """Drops the code compiled for another arm, and its memory.

    torch.compile falls back to eager mode once it has compiled one function for more
    than a few models.
    """
    if "torch._dynamo" in sys.modules:  # else nothing was compiled
        torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
