"""Running a study: every arm with every seed, each in a run folder of its own."""

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
from t2t.lab.studies.results import Outcome, costs_of, finished, gather, run_folder
from t2t.lab.studies.study import Study
from t2t.training.loaders import open_data
from t2t.training.loop import Runtime, train
from t2t.training.recipe import Recipe
from t2t.training.run_folder import RunFolder


def run_study(
    study: Study,
    seeds: Sequence[int],
    folder: Path,
    *,
    only: tuple[str, ...] = (),
    runtime: Runtime | None = None,
    warn: Callable[[str], None] = print,
    quiet: bool = False,
) -> Outcome:
    """Trains what is not trained yet and writes the table after every run.

    Runs lie under `folder`/runs and are shared by all studies there; table, numbers and
    picture under `folder`/NAME. The same call goes on with what was interrupted. A run
    that fails is told, and left out.
    """
    names = study.chosen(only)
    num_classes = len(open_data(study.arms[names[0]]).train.classes)
    costs = costs_of(study, num_classes)
    failed: dict[tuple[str, int], str] = {}
    so_far = partial(gather, study, seeds, folder, costs, num_classes, failed)
    # All seeds of an arm before the next: they share what is compiled for the first.
    runs = [(name, seed) for name in names for seed in seeds]
    check_folders(study, runs, folder)
    if any(finished(folder, study.arms[name], seed) is None for name, seed in runs):
        # A place that could hold none of them is told once, and not for each.
        with writing_into(folder, "name another --folder"):
            TemporaryFile(dir=folder).close()
    compiled_for = ""
    opened: dict[tuple[object, ...], Splits] = {}
    for number, (name, seed) in enumerate(runs, start=1):
        recipe = study.arms[name]
        if finished(folder, recipe, seed) is not None:
            continue
        if name != compiled_for:
            forget_programs()
            compiled_for = name
        warn(f"{study.name}: arm {name}, seed {seed} (run {number} of {len(runs)})")
        seeded = replace(recipe, seed=seed)
        try:
            result = train(
                seeded,
                folder=run_folder(folder, recipe, seed),
                runtime=runtime,
                quiet=quiet,
                splits=images_of(seeded, opened),
            )
        except UserError as error:
            failed[name, seed] = str(error)
            warn(f"{study.name}: arm {name}, seed {seed} is left out. {error}")
            compiled_for = ""  # so that the memory it held is let go
            continue
        if not result.finished:
            break
        try:
            write(so_far(), folder / study.name)
        except UserError as error:  # which may be put right before the last run ends
            warn(str(error))
        if result.asked_to_stop:
            break
    outcome = so_far()
    if outcome.arms:
        write(outcome, folder / study.name)
    return outcome


def images_of(recipe: Recipe, opened: dict[tuple[object, ...], Splits]) -> Splits:
    """The images of a run, opened once for all, so that small sets are decoded once."""
    found = open_data(recipe)
    # The description tells a seed that chose what to judge by.
    held_out = (recipe.holdout, recipe.seed if recipe.holdout else 0)
    return opened.setdefault((recipe.data, found.description, *held_out), found)


def check_folders(study: Study, runs: Sequence[tuple[str, int]], folder: Path) -> None:
    """Refuses runs of other recipes before any is trained."""
    for name, seed in runs:
        recipe = study.arms[name]
        place = RunFolder(run_folder(folder, recipe, seed))
        place.check_same(replace(recipe, seed=seed))


def forget_programs() -> None:
    """Lets go of what was compiled for another arm, and of its memory.

    torch.compile gives up, and goes on uncompiled, once it has compiled one function
    for more than a few models.
    """
    if "torch._dynamo" in sys.modules:  # else nothing was compiled
        torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
