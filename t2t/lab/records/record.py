"""Records: finished runs of one recipe gathered in a folder."""

import re
import shutil
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from t2t.config import differences, few, to_json
from t2t.errors import UserError
from t2t.formatting import counted
from t2t.lab.output_dir import file_names, renamed, writing_into
from t2t.lab.studies.figures import draw_seeds
from t2t.tasks.base import Metric
from t2t.tasks.registry import primary_metric
from t2t.training.environment import read_environment
from t2t.training.logging.metrics import read_rows
from t2t.training.run_files import (
    CURVES,
    ENVIRONMENT,
    METRICS,
    RECIPE,
    read_json,
    write_json,
    write_text,
)
from t2t.training.saved_run import read_recipe, read_result

SUMMARY, LOG, PAGE = "summary.json", "log.txt", "README.md"
SAME_RUNTIME = (
    "device",
    "num_processes",
    "precision",
    "compile",
    "micro_batch",
    "parallelism",
)
"""What the runs of a record must share, since its times are their mean."""
SUMMARY_KEYS = (
    "recipe",
    "data",
    "model",
    "parameters",
    "epochs",
    "seeds",
    "top1",
    "top1_raw",
    "train_minutes",
    "compile_minutes",
    "gpu",
    "command",
)
"""The keys of a record's summary; instead of top1, the task's primary metric. The
metric has a value per seed, minutes are means."""


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """The contents of a finished run folder."""

    folder: Path
    recipe: dict[str, Any]
    environment: dict[str, Any]
    result: dict[str, Any]
    rows: list[dict[str, Any]]
    log: Path | None

    @property
    def seed(self) -> int:
        return int(self.recipe["seed"])

    def with_data_name(self, name: str) -> "FinishedRun":
        """The run with a name instead of its data's path."""
        path = self.recipe["data"]
        return replace(
            self,
            recipe=renamed(self.recipe, path, name),
            environment=renamed(self.environment, path, name),
            result=renamed(self.result, path, name),
        )


def record(
    runs: Sequence[Path],
    into: Path,
    *,
    data_name: str | None = None,
    held_out: bool = False,
    logs: Sequence[Path] = (),
) -> dict[str, Any]:
    """Gathers finished runs that differ in their seed; returns the summary.

    `data_name` replaces the data's path in all files. Runs evaluated on held-out
    training images need `held_out`, and are labelled.
    """
    opened = open_runs(runs, held_out=held_out, logs=logs)
    check_target(into, opened[0])
    with writing_into(into):
        write_record(opened, into, data_name)
    return read_json(into / SUMMARY)


def open_runs(
    runs: Sequence[Path], *, held_out: bool, logs: Sequence[Path] = ()
) -> list[FinishedRun]:
    """The runs sorted by seed; raises an error unless they can be one record."""
    if logs and len(logs) != len(runs):
        raise UserError(
            f"{len(runs)} runs and {len(logs)} logs are given; give a log for each run."
        )
    given: Sequence[Path | None] = logs or [None] * len(runs)
    opened = [open_run(run, log) for run, log in zip(runs, given, strict=True)]
    opened.sort(key=lambda run: run.seed)
    check_alike(opened)
    check_holdout(opened[0], held_out)
    return opened


def check_target(into: Path, run: FinishedRun) -> None:
    """Raises an error if the folder holds anything but a record of this recipe."""
    existing = file_names(into)
    ours = (RECIPE, ENVIRONMENT, CURVES, PAGE, "seed", ".")
    if SUMMARY not in existing and any(not name.startswith(ours) for name in existing):
        raise UserError(
            f"{into} holds something other than a record; give --out a new folder."
        )
    own = run.recipe["name"]
    name = own
    if RECIPE in existing:
        name = read_json(into / RECIPE, {"name": str})["name"]
    if name != own:
        raise UserError(
            f"{into} is a record of {name}, not of {own}; give --out a new folder."
        )


def write_record(
    runs: Sequence[FinishedRun], into: Path, data_name: str | None
) -> None:
    """Writes all files of a record; keeps an existing page."""
    data = runs[0].recipe["data"]
    name = data if data_name is None else data_name
    runs = [run.with_data_name(name) for run in runs]
    summary = summarise(runs)
    write_json(into / RECIPE, runs[0].recipe)
    write_json(into / ENVIRONMENT, runs[0].environment)
    write_json(into / SUMMARY, summary)
    # Files of seeds that an earlier version of this record had.
    for path in into.glob("seed[0-9]*"):
        if re.fullmatch(r"seed\d+\.(json|jsonl|log)", path.name):
            path.unlink()
    for run in runs:
        write_json(into / f"seed{run.seed}.json", run.result)
        shutil.copyfile(run.folder / METRICS, into / f"seed{run.seed}.jsonl")
        if run.log is not None:
            log = run.log.read_text("utf-8", "surrogateescape")
            (into / f"seed{run.seed}.log").write_text(
                renamed(log, data, name), "utf-8", "surrogateescape"
            )
    draw_seeds(runs, into / CURVES)
    if not (into / PAGE).exists():
        metric = primary_metric(runs[0].recipe["task"], runs[0].result["metric"])
        write_text(into / PAGE, first_page(summary, metric))


def open_run(folder: Path, log: Path | None) -> FinishedRun:
    """A run folder; raises an error unless it is finished."""
    result = read_result(folder)
    if log is None and (folder / LOG).exists():
        log = folder / LOG
    if log is not None and not log.is_file():
        raise UserError(f"There is no log {log}.")
    try:
        rows = read_rows(folder / METRICS)
    except OSError as error:
        raise UserError(
            f"{folder / METRICS} cannot be read ({error.strerror}): check its "
            "permissions."
        ) from error
    metric = result["metric"]
    evaluations = [row[metric] for row in rows if metric in row]
    last = result["last_score" if result.get("keep") == "best" else metric]
    if evaluations[-1:] != [last] or result[metric] not in evaluations:
        raise UserError(
            f"{folder / METRICS} does not end in the run's result: the disk was full, "
            "or the file was changed; train the run again."
        )
    return FinishedRun(
        folder=folder,
        recipe=to_json(read_recipe(folder)),
        environment=read_environment(folder),
        result=result,
        rows=rows,
        log=log,
    )


def check_alike(runs: Sequence[FinishedRun]) -> None:
    """Raises an error unless the runs differ in their seed and nothing else."""
    first = runs[0]
    for before, run in pairwise(runs):
        others = [
            each
            for each in differences(first.recipe, run.recipe)
            if not each.startswith("seed:")
        ]
        if others:
            raise UserError(
                f"{first.folder} and {run.folder} have different recipes "
                f"({few(others)}); a record holds one recipe."
            )
        if run.seed == before.seed:
            raise UserError(
                f"{before.folder} and {run.folder} have the same seed {run.seed}; a "
                "record holds each seed once."
            )
        ours, theirs = (
            {key: each.environment.get(key) for key in SAME_RUNTIME}
            for each in (first, run)
        )
        if unequal := differences(ours, theirs):
            raise UserError(
                f"{first.folder} and {run.folder} were trained in different ways "
                f"({'; '.join(unequal)}); a record holds one machine's times."
            )


def check_holdout(run: FinishedRun, held_out: bool) -> None:
    """Raises an error unless `held_out` says what the run was evaluated on."""
    number = run.recipe["holdout"]
    if number and not held_out:
        raise UserError(
            f"{run.folder} was evaluated on {number:,} held-out training images, not "
            "on the test set: train it with holdout=0, or add --held-out to label the "
            "record."
        )
    if held_out and not number:
        raise UserError(
            f"{run.folder} holds nothing out (holdout=0): leave out --held-out."
        )


def summarise(runs: Sequence[FinishedRun]) -> dict[str, Any]:
    """The summary of a record."""
    first = runs[0]
    results = [run.result for run in runs]
    metric = results[0]["metric"]
    number = first.recipe["holdout"]
    evaluated_on = (
        f", evaluated on {number:,} held-out training images" if number else ""
    )
    device = first.environment["device"]
    kind, _, name = device.partition(" ")
    values = {
        **{key: results[0][key] for key in ("recipe", "model", "parameters", "epochs")},
        "data": f"{first.recipe['data']}{evaluated_on}",
        "seeds": [run.seed for run in runs],
        **{
            key: [result[key] for result in results]
            for key in (metric, f"{metric}_raw")
        },
        "gpu": name if kind == "cuda" else f"none ({device})",
        "command": results[0]["command"],
        **{
            key: round(statistics.fmean(result[key] for result in results), 3)
            for key in ("train_minutes", "compile_minutes")
        },
    }
    keys = [key.replace("top1", metric) for key in SUMMARY_KEYS]
    return {key: values[key] for key in keys}


def first_page(summary: dict[str, Any], metric: Metric) -> str:
    """A first README with the command and the results."""
    name, digits = metric.name, metric.digits
    rows = zip(summary["seeds"], summary[name], summary[f"{name}_raw"], strict=True)
    lines = [
        f"# {summary['recipe']}",
        "",
        f"{summary['model']}, {summary['parameters'] / 1e6:.2f} M parameters, "
        f"{counted(summary['epochs'], 'epoch')} of {summary['data']}. "
        f"GPU: {summary['gpu']}.",
        f"{summary['train_minutes']:.2f} minutes of training and "
        f"{summary['compile_minutes']:.2f} of compiling, mean over the seeds.",
        "",
        "```console",
        f"$ {summary['command']}",
        "```",
        "",
        f"| seed | {metric.label} (EMA) | {metric.label} (raw) |",
        "|---|---|---|",
        *(
            f"| {seed} | {ema:.{digits}f} | {raw:.{digits}f} |"
            for seed, ema, raw in rows
        ),
    ]
    return "\n".join(lines) + "\n"
