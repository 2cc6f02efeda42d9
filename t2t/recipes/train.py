"""`t2t.train`: trains with the options of the command `t2t train`."""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from t2t.data.decoding.damage import DEFAULT_MAX_DAMAGED
from t2t.data.decoding.headers import DEFAULT_MAX_PIXELS
from t2t.data.label_config import PathLike, label_config
from t2t.data.sources import Splits
from t2t.data.sources.in_memory import Data, data_name
from t2t.errors import UserError
from t2t.models.config import Size
from t2t.models.create import as_size
from t2t.recipes.choose import RecipeOptions, choose_recipe
from t2t.recipes.folds import check_folds, folds_note, train_folds
from t2t.recipes.labels import with_labels_found
from t2t.recipes.minutes import CPU_MINUTES, fit_budget, needs_budget
from t2t.recipes.open_recipe import UNNAMED
from t2t.recipes.time_budget import Budget
from t2t.training import train as training
from t2t.training.distributed import Parallelism
from t2t.training.recipe import Recipe
from t2t.training.result import Result
from t2t.training.run_folder import RunFolder
from t2t.training.runtime import Compile, Precision, Runtime
from t2t.user_code import load_code


def train(
    recipe: Recipe | PathLike = UNNAMED,
    *,
    data: Data | None = None,
    labels: PathLike | Sequence[PathLike] = (),
    label_columns: str | None = None,
    label_pattern: str | None = None,
    from_: PathLike | None = None,
    freeze: bool = False,
    image_size: int | Size | None = None,
    teacher: PathLike | None = None,
    distill: Literal["soft", "hard"] | None = None,
    distill_token: bool = False,
    folder: PathLike | None = None,
    set: Mapping[str, Any] | Sequence[str] = (),
    code: Iterable[PathLike] = (),
    epochs: int | None = None,
    minutes: float | None = None,
    seed: int | None = None,
    balance: Literal["sampling", "weights"] | None = None,
    keep: Literal["last", "best"] | None = None,
    patience: int | None = None,
    folds: int | None = None,
    device: str | None = None,
    precision: Precision | None = None,
    residual: Literal["half", "fp32"] = "half",
    compile: Compile = "auto",
    micro_batch: int | None = None,
    parallelism: Parallelism = "ddp",
    workers: int | None = None,
    threads: int | None = None,
    max_pixels: int = DEFAULT_MAX_PIXELS,
    max_damaged: str = DEFAULT_MAX_DAMAGED,
    checkpoint_minutes: float = 5.0,
    hang_minutes: float = 20.0,
    fresh: bool = False,
    dry_run: bool = False,
    runtime: Runtime | None = None,
    quiet: bool = False,
    splits: Splits | None = None,
    notes: Sequence[str] = (),
    started: float | None = None,
) -> Result:
    """Trains a model; the same call resumes an interrupted run.

    `recipe` is a recipe or what the command takes; without it, `data` and `from_`
    decide. `data` is also a torch Dataset, a Hugging Face dataset, arrays (images,
    labels), a data frame of paths and labels, or a pair (train, val) of these; to
    resume such a run, pass the same data again.

    Keywords are the options of `t2t train`, where docs/guide.md explains them;
    `set` maps fields of the recipe to values. `minutes` measures this machine's speed
    and chooses the epochs that take so long, in place of `epochs`. With `folds`, the
    result's `summary` has the mean of every metric, and its `folds` the single results.
    `dry_run` prints the estimate and trains nothing. `runtime` holds all settings of
    the machine at once, `quiet` prints nothing, `splits` are the recipe's images if
    they are open already, `notes` are sentences for the log, and `started` is the time
    of the command by `time.monotonic()`.
    """
    started = time.monotonic() if started is None else started
    for file in code:
        load_code(file)
    options = RecipeOptions(
        data=data_name(data),
        labels=label_config(labels, label_columns, label_pattern),
        weights=as_text(from_),
        freeze=freeze,
        image_size=None if image_size is None else as_size(image_size),
        teacher=as_text(teacher),
        distill=distill,
        distill_token=distill_token,
        epochs=epochs,
        seed=seed,
        balance=balance,
        keep=keep,
        patience=patience,
    )
    recipe, settings = as_recipe(recipe), as_words(set)
    chosen, own_notes = choose_recipe(recipe, options, settings)
    if splits is None:
        chosen, label_notes = with_labels_found(chosen)
        own_notes += label_notes
    if folder is None:
        folder = run_to_resume(recipe, chosen)
    runtime = one_runtime(
        runtime,
        Runtime(
            device=device,
            precision=precision,
            residual=residual,
            compile=compile,
            micro_batch=micro_batch,
            parallelism=parallelism,
            workers=workers,
            threads=threads,
            max_pixels=max_pixels,
            max_damaged=max_damaged,
            checkpoint_minutes=checkpoint_minutes,
            hang_minutes=hang_minutes,
        ),
    )
    path = Path(os.path.expanduser(folder or Path("runs") / training.run_name(chosen)))
    if folds is not None:
        check_folds(chosen, folds)
    is_timed = False
    if needs_budget(recipe, chosen, options, settings, minutes, runtime, folds):
        budget = Budget(
            minutes=minutes or CPU_MINUTES, asked=bool(minutes), started=started
        )
        run_folder = None if fresh else RunFolder(path)
        chosen, why, splits = fit_budget(
            (recipe, options, settings), chosen, budget, runtime, splits, run_folder
        )
        own_notes = [*own_notes, *why]
        is_timed = bool(why)
    if dry_run:
        print_estimate(chosen, runtime, folds, own_notes)
        return Result(path, finished=False, summary={})
    train_one = partial(
        training.train,
        runtime=runtime,
        fresh=fresh,
        quiet=quiet,
        started=started,
        is_timed=is_timed,
    )
    notes = [*notes, *own_notes]
    if folds is not None:
        return train_folds(chosen, folds, path, train_one, splits, notes)
    return train_one(chosen, folder=as_text(folder), splits=splits, notes=notes)


def run_to_resume(recipe: Recipe | str, chosen: Recipe) -> str | None:
    """The folder of a run, if a recipe is given as one and no option changes it.

    Whatever its name: it may have been moved.
    """
    if not isinstance(recipe, str) or not is_started_run(recipe):
        return None
    own, _ = choose_recipe(recipe, RecipeOptions())
    return recipe if chosen == own else None


def print_estimate(
    recipe: Recipe, runtime: Runtime, folds: int | None, notes: Sequence[str]
) -> None:
    """Prints the estimated time and memory of a run, or of one of several folds."""
    from t2t.training.forecast.estimate import estimate

    if folds is not None:
        recipe = replace(recipe, fold=(1, folds))
        notes = [*notes, folds_note(folds)]
    print("\n".join([estimate(recipe, runtime), *notes]))


def as_recipe(recipe: Any) -> Recipe | str:
    """A recipe, or what the command takes for one."""
    if isinstance(recipe, Recipe):
        return recipe
    if isinstance(recipe, str | os.PathLike):
        return os.fspath(recipe)
    name = getattr(recipe, "__name__", None)
    hint = f"call it, as in t2t.train({name}())" if name else "give a Recipe or a name"
    raise UserError(f"The recipe is a {type(recipe).__name__}: {hint}.")


def is_started_run(recipe: str) -> bool:
    """Whether a recipe is given as the folder of a run, to resume it there."""
    run_folder = RunFolder(Path(recipe).expanduser())
    return recipe != UNNAMED and run_folder.is_run() and run_folder.has_started()


def as_text(path: PathLike | None) -> str | None:
    """A path or name as the command line would give it."""
    return None if path is None else os.fspath(path)


def as_words(settings: Mapping[str, Any] | Sequence[str]) -> tuple[str, ...]:
    """Settings as the words of --set."""
    if isinstance(settings, str):
        raise UserError(
            f"set={settings!r} is one string; give a dict such as "
            "{'optimizer.lr': 1e-3}, or a list of strings."
        )
    if not isinstance(settings, Mapping):
        return tuple(settings)
    return tuple(f"{name}={value}" for name, value in settings.items())


def one_runtime(given: Runtime | None, by_options: Runtime) -> Runtime:
    """The given runtime, or that of the single options; both are an error."""
    if given is None:
        return by_options
    changed = [
        field.name
        for field in fields(Runtime)
        if getattr(by_options, field.name) != field.default
    ]
    if changed:
        raise UserError(
            f"{changed[0]} and runtime are both given; set {changed[0]} in the runtime."
        )
    return given
