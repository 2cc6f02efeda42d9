"""Trials of pre-training without labels on one GPU, one after the other.

    python benchmarks/pretrain_trials.py path/to/cifar10 --out rows.jsonl --minutes 9 \
        moco_v3+muon@20 dino+optimizer.lr=1e-3@20 simclr+batch_size=1024@20 best@13m

A trial is a recipe `pretrain.NAME`, settings as for --set, and epochs; `muon` stands
for the optimizer of the recipes from scratch. `best@13m` is the one with the best
linear probe of those before it, for 13 minutes at its images/s. Features are scored by
a linear probe and kNN; then the model (with `best`, that one alone) is fine-tuned on
shares of the labels, and the same model is trained from scratch on the same images, on
all of them for the same time as pre-training and fine-tuning took. Every result is a
row, written at once. The same command resumes what --minutes cut off or a signal
killed, if the folder --runs is kept; it writes each row once.
"""

import argparse
import gc
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from t2t.data.sources import Splits
from t2t.models.pretrained import read_pretrained
from t2t.models.trained import load_trained
from t2t.probing.images import ImagesOfSplit, some_of
from t2t.probing.options import ProbeOptions
from t2t.probing.probe import score_all
from t2t.recipes import find_recipe
from t2t.recipes.default import fitting_batch
from t2t.recipes.fine_tuning import LARGEST_BATCH, fine_tuning, with_weights
from t2t.recipes.settings import apply_settings
from t2t.recipes.small_images import MUON
from t2t.training.evaluation.evaluate_source import EvaluateOptions, no_progress
from t2t.training.loaders import open_data
from t2t.training.recipe import Recipe
from t2t.training.result import Result
from t2t.training.runtime import Runtime
from t2t.training.train import train

FINE_TUNED = "fine_tuned"
"""In --tune, the defaults of `t2t train --from`."""
SCRATCH = "cifar10.t2t_vit_7"
TUNINGS = ("0.01:fine_tuned@100", "0.1:fine_tuned@50", f"1:{SCRATCH}@100")
BEST = "best"
SCORES = "scores.json"
"""In a run's folder: what a probe has found, which need not be computed twice."""
SMALL_SCRATCH_EPOCHS = 300
"""Epochs from scratch on a share of the labels; on all, those of the same time."""
Row = dict[str, Any]


class TimeIsUpError(Exception):
    """The minutes are over; the run so far can be resumed."""


@dataclass(frozen=True)
class Tuning:
    """A share of the labels, and the recipe and epochs to fine-tune on it."""

    share: float
    recipe: str
    epochs: int

    @classmethod
    def of(cls, text: str) -> "Tuning":
        """Reads SHARE:RECIPE@EPOCHS."""
        share, _, rest = text.partition(":")
        recipe, _, epochs = rest.partition("@")
        return cls(float(share), recipe, int(epochs))


@dataclass
class Bench:
    """What all trials share: images, folders, settings, and the rows so far."""

    splits: Splits
    options: argparse.Namespace
    ends: float
    done: set[str] = field(default_factory=set)
    """Runs from scratch, which trials of the same model share."""
    has_failed: bool = False
    scored: dict[str, Row] = field(default_factory=dict)
    """The rows of the features of each trial."""

    def write(self, row: Row) -> None:
        """Adds a row to the file, if it is not in it, and prints it."""
        line = json.dumps(row) + "\n"
        file = self.options.out
        if file.exists() and line in file.read_text().splitlines(keepends=True):
            return
        with file.open("a") as out:
            out.write(line)
        print(json.dumps({k: v for k, v in row.items() if v is not None}), flush=True)

    def run(self, name: str, recipe: Recipe, splits: Splits) -> Result:
        """Trains a recipe in a folder of that name, or resumes it."""
        seconds = self.ends - time.monotonic()
        if seconds <= 0:
            raise TimeIsUpError
        # As Ctrl-C would: the run writes a checkpoint and returns.
        alarm = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGTERM))
        alarm.start()
        try:
            result = train(
                replace(recipe, seed=self.options.seed),
                folder=self.options.runs / f"{name}-seed{self.options.seed}",
                runtime=Runtime(
                    compile="off", device=self.options.device, checkpoint_minutes=1.0
                ),
                splits=splits,
                quiet=True,
            )
        except KeyboardInterrupt:  # the alarm came before the first step
            raise TimeIsUpError from None
        finally:
            alarm.cancel()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if not result.finished:
            raise TimeIsUpError
        return result

    def part(self, share: float) -> Splits:
        """A share of the training images, drawn by the seed."""
        train, val = self.splits.train, self.splits.val
        num = round(share * len(train))
        drawn = some_of(train, num, self.options.seed)
        return Splits(drawn, val, self.splits.description)


def pretrain_recipe(trial: str, options: argparse.Namespace) -> Recipe:
    """The recipe of a trial such as moco_v3+optimizer.lr=1e-3@100."""
    words, _, epochs = trial.partition("@")
    name, *settings = words.split("+")
    recipe = replace(find_recipe(f"pretrain.{name}"), data=options.data)
    if "muon" in settings:
        recipe = replace(recipe, optimizer=MUON)
        settings.remove("muon")
    words_of_all = (*options.set, *settings)
    recipe = apply_settings(recipe, int(epochs) if epochs else None, words_of_all)
    # Each evaluation takes time, and nothing is chosen by it.
    return replace(recipe, evaluate_every=max(recipe.epochs // 4, 1))


def best_trial(trial: str, bench: Bench) -> str:
    """The trial that best@MINUTESm stands for."""
    if not bench.scored:
        raise ValueError(f"{trial} needs a trial before it that has finished")
    best = max(bench.scored, key=lambda name: float(bench.scored[name]["linear_top1"]))
    length = trial.partition("@")[2]
    if length.endswith("m"):
        seconds = 60 * float(length[:-1])
        images = seconds * bench.scored[best]["images_per_second"]
        length = str(max(round(images / len(bench.splits.train)), 1))
    return f"{best.partition('@')[0]}@{length}"


def score(folder: Path, bench: Bench) -> Row:
    """The linear and kNN top-1 of the features of a run."""
    options, splits = bench.options, bench.splits
    file = folder / SCORES
    if file.exists():
        known: Row = json.loads(file.read_text())
        return known
    started = time.monotonic()
    report = score_all(
        load_trained(folder, needs_head=False),
        (
            ImagesOfSplit(splits.train, options.data, "train"),
            ImagesOfSplit(splits.val, options.data, "val"),
        ),
        ProbeOptions(methods=("linear", "knn"), seed=options.seed),
        EvaluateOptions(device=options.device, batch_size=1000),
        Path(),
        no_progress,
    )
    row: Row = {f"{each.method}_top1": round(each.top1, 2) for each in report.results}
    row["probe_seconds"] = round(time.monotonic() - started, 1)
    part = file.with_suffix(".part")
    part.write_text(json.dumps(row))
    part.replace(file)
    return row


def tuned_recipe(tuning: Tuning, weights: Path, num_images: int, data: str) -> Recipe:
    """The recipe that fine-tunes a run's weights on so many images."""
    start = read_pretrained(weights)
    if tuning.recipe == FINE_TUNED:
        recipe = fine_tuning(start, data, epochs=tuning.epochs)
        batch_size = min(fitting_batch(num_images), LARGEST_BATCH)
    else:
        recipe = replace(find_recipe(tuning.recipe), data=data)
        recipe = with_weights(recipe, start)
        recipe = apply_settings(recipe, tuning.epochs, ())
        batch_size = min(fitting_batch(num_images), recipe.batch_size)
    return replace(recipe, batch_size=batch_size, evaluate_every=tuning.epochs)


def scratch_recipe(pretrained: Recipe, num_images: int, epochs: int) -> Recipe:
    """The recipe of CIFAR-10 from scratch for a trial's model, on so many images."""
    recipe = replace(
        find_recipe(SCRATCH),
        data=pretrained.data,
        model=pretrained.model,
        model_args=pretrained.model_args,
        image_size=pretrained.image_size,
    )
    recipe = apply_settings(recipe, epochs, ())
    batch_size = min(fitting_batch(num_images), recipe.batch_size)
    return replace(recipe, batch_size=batch_size, evaluate_every=epochs)


def from_scratch(
    bench: Bench, pretrained: Recipe, part: Splits, share: float, epochs: int
) -> Iterator[Row]:
    """A row of the model trained from scratch on a share of the labels, once."""
    recipe = scratch_recipe(pretrained, len(part.train), epochs)
    name = f"scratch-{recipe.model}-{share:g}@{epochs}"
    if name not in bench.done:
        bench.done.add(name)
        result = bench.run(name, replace(recipe, name=name), part)
        yield {
            "trial": name,
            "seed": bench.options.seed,
            "task": recipe.task,
            "model": recipe.model,
            "epochs": epochs,
            "labels": share,
            "top1": result.summary["top1"],
            "train_minutes": result.summary["train_minutes"],
        }


def last_numbers(folder: Path) -> Row:
    """What was logged last of the loss, and of what shows a collapse."""
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    last: Row = {}
    for row in rows:
        last |= row
    collapse = ("feature_std", "output_std", "teacher_entropy", "batch_entropy")
    names = ("loss", "val_loss", *collapse)
    return {name: last[name] for name in names if name in last}


def rows_of(trial: str, bench: Bench) -> Iterator[Row]:
    """Pre-trains; yields a row of the features, and two for each share of labels."""
    options = bench.options
    is_best = trial.startswith(f"{BEST}@")
    if is_best:
        trial = best_trial(trial, bench)
    recipe = replace(pretrain_recipe(trial, options), name=trial)
    result = bench.run(folder_name(trial), recipe, bench.splits)
    row: Row = {
        "trial": trial,
        "seed": options.seed,
        "task": recipe.task,
        "model": recipe.model,
        "parameters": result.summary["parameters"],
        "epochs": recipe.epochs,
        "linear_top1": None,
        "knn_top1": None,
        "finetuned_top1": None,
        "labels": None,
        "pretrain_minutes": result.summary["train_minutes"],
        "images_per_second": result.summary["images_per_second"],
        "device": result.summary["device"],
        **last_numbers(result.folder),
    }
    row |= score(result.folder, bench)
    yield row
    bench.scored[trial] = dict(row)
    if not is_best and any(each.startswith(f"{BEST}@") for each in options.trials):
        return
    for tuning in map(Tuning.of, options.tune):
        part = bench.part(tuning.share)
        num = len(part.train)
        name = f"{folder_name(trial)}-{tuning.share:g}-{tuning.recipe}@{tuning.epochs}"
        tuned_by = tuned_recipe(tuning, result.folder, num, options.data)
        tuned = bench.run(name, replace(tuned_by, name=name), part)
        minutes = tuned.summary["train_minutes"]
        row |= {
            "labels": tuning.share,
            "finetuned_top1": tuned.summary["top1"],
            "finetune_minutes": minutes,
            "finetuned_by": f"{tuning.recipe}@{tuning.epochs}",
        }
        yield row
        if options.no_scratch:
            continue
        epochs = options.scratch_epochs
        if tuning.share >= 1 and tuning.recipe == SCRATCH:
            # A step from scratch costs what a step of fine-tuning does.
            total = row["pretrain_minutes"] + minutes
            epochs = max(round(tuning.epochs * total / max(minutes, 1e-3)), 1)
        yield from from_scratch(bench, recipe, part, tuning.share, epochs)


def folder_name(trial: str) -> str:
    """The trial as a name for a folder."""
    return "".join(c if c.isalnum() or c in "+=@.-_" else "-" for c in trial)


def run_trials(bench: Bench) -> None:
    """Runs the trials that fit into the time; an error ends its trial alone."""
    for trial in bench.options.trials:
        try:
            for row in rows_of(trial, bench):
                bench.write(row)
        except TimeIsUpError:
            print(f"{trial}: the time is up; the same command resumes it", flush=True)
            bench.has_failed = True
            return
        except KeyboardInterrupt:
            print(f"{trial}: stopped", flush=True)
            bench.has_failed = True
            return
        except Exception as error:
            traceback.print_exc()
            bench.has_failed = True
            shown = f"{type(error).__name__}: {error}"[:500]
            bench.write({"trial": trial, "error": shown})


def main() -> int:
    """Runs the trials; 1 if one failed or the time was too short."""
    text: Callable[..., Any] = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=text)
    parser.add_argument("data")
    parser.add_argument("trials", nargs="+", metavar="NAME[+FIELD=VALUE…]@EPOCHS")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("/tmp/pretrain-trials"))
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument(
        "--tune", nargs="*", default=TUNINGS, metavar="SHARE:RECIPE@EPOCHS"
    )
    parser.add_argument("--set", nargs="*", default=(), help="of every pre-training")
    parser.add_argument("--scratch-epochs", type=int, default=SMALL_SCRATCH_EPOCHS)
    parser.add_argument("--no-scratch", action="store_true")
    parser.add_argument("--device")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    # Between two runs, a signal to stop ends the trial as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    ends = time.monotonic() + 60 * options.minutes
    # Names are checked before the images are read.
    named = [each for each in options.trials if not each.startswith(f"{BEST}@")]
    recipes = [pretrain_recipe(trial, options) for trial in named]
    for tuning in map(Tuning.of, options.tune):
        if tuning.recipe != FINE_TUNED:
            find_recipe(tuning.recipe)
    if not recipes:
        parser.error(f"name a trial before {BEST}@…")
    splits = open_data(replace(recipes[0], task="classify", task_args={}))
    bench = Bench(splits, options, ends)
    run_trials(bench)
    return int(bench.has_failed)


if __name__ == "__main__":
    sys.exit(main())
