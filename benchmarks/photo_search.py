"""Searches a recipe for photographs on a GPU, one stage after the other.

    python benchmarks/photo_search.py imagewoof-160 --out $OUT/search.jsonl --minutes 8

Every trial is scored on images held out of the training set. A stage tries one change
each of the best recipe so far; the best of the stage is where the next one starts, and
changes that gain are tried together. Processes share the GPU, so that one prepares
while another trains. A trial that is in the file of the results is not run again.
"""

import argparse
import json
import multiprocessing
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from t2t.recipes.photos import photo_recipe
from t2t.training.loaders import open_data
from t2t.training.loop import train
from t2t.training.recipe import ProgressiveResizing, Recipe, TokenDropping
from t2t.training.runtime import Runtime

HOLDOUT = 2_000
IMAGES = 7_025
Change = Callable[[Recipe], Recipe]


def model(name: str | None = None, **settings: Any) -> Change:
    """Another model, or other settings of the model."""

    def changed(recipe: Recipe) -> Recipe:
        if name is not None:
            is_pyramid = "pyramid" in name
            base = {} if is_pyramid else dict(plain(recipe.epochs).model_args)
            dropping = TokenDropping() if is_pyramid else recipe.token_dropping
            return replace(
                recipe, model=name, model_args=base | settings, token_dropping=dropping
            )
        return replace(recipe, model_args={**recipe.model_args, **settings})

    return changed


def augment(**settings: Any) -> Change:
    return lambda recipe: replace(
        recipe, augmentation=replace(recipe.augmentation, **settings)
    )


def optimizer(**settings: Any) -> Change:
    return lambda recipe: replace(
        recipe, optimizer=replace(recipe.optimizer, **settings)
    )


def rate(factor: float) -> Change:
    """Both learning rates times a factor."""

    def changed(recipe: Recipe) -> Recipe:
        own = recipe.optimizer
        scaled = replace(own, lr=own.lr * factor, adamw_lr=own.adamw_lr * factor)
        return replace(recipe, optimizer=scaled)

    return changed


def crop(low: float) -> Change:
    return lambda recipe: replace(recipe, crop=replace(recipe.crop, scale=(low, 1.0)))


def field(**settings: Any) -> Change:
    return lambda recipe: replace(recipe, **settings)


def both(*changes: Change) -> Change:
    def changed(recipe: Recipe) -> Recipe:
        for each in changes:
            recipe = each(recipe)
        return recipe

    return changed


CONVOLUTIONS = ("axial", "conv_attention", "conv_attention", "conv_attention")
ALL_TOKENS = field(token_dropping=TokenDropping())
MODELS: dict[str, Change] = {
    "plain": lambda recipe: recipe,
    "both_convolutions": both(
        model(mlp="depthwise", mixer="conv_attention"), ALL_TOKENS
    ),
    "pyramid": model("t2t_pyramid_base"),
    "pyramid_convolutions": model("t2t_pyramid_base", pyramid_mixers=CONVOLUTIONS),
    "pyramid_fine": model(
        "t2t_pyramid_base",
        splits=((7, 2, 3), (3, 1, 1)),
        pyramid_mixers=("axial", "axial", "conv_attention", "conv_attention"),
    ),
    "depthwise": both(model(mlp="depthwise"), ALL_TOKENS),
    "pyramid_small": model("t2t_pyramid_small"),
    "conv_tokens": model(tokenizer="t2t_conv"),
}
RATES: dict[str, Change] = {
    "higher_rate": rate(2.0),
    "lower_rate": rate(0.5),
    "larger_batch": lambda recipe: replace(recipe, batch_size=2 * recipe.batch_size),
    "smaller_crops": crop(0.2),
    "mixed_always": augment(mix_probability=1.0),
    "no_mixing": augment(mix_probability=0.0),
    "colours": augment(rand_augment="rand-m5-mstd0.5-inc1"),
    "more_decay": optimizer(weight_decay=0.15),
    "drop_path": field(drop_path=0.1),
    "growing": field(
        progressive_resizing=ProgressiveResizing(initial_scale=0.75, until=0.6)
    ),
}
STAGES = {"models": MODELS, "rates": RATES}


def plain(epochs: int, stride: int | None = None) -> Recipe:
    """What `t2t train --data` chooses."""
    return photo_recipe(
        "photos",
        "imagewoof",
        num_images=IMAGES,
        image_size=(128, 128),
        epochs=epochs,
        stride=stride,
    )


def work(data: str, runs: str, tasks: Any, results: Any) -> None:
    """Trains what comes through the queue until there is None."""
    splits = None
    while (task := tasks.get()) is not None:
        name, recipe = task
        started = time.monotonic()
        row: dict[str, Any] = {"trial": name, "epochs": recipe.epochs}
        try:
            recipe = replace(recipe, data=data)
            splits = splits or open_data(recipe)
            result = train(
                recipe,
                folder=Path(runs) / name.replace("/", "-"),
                runtime=Runtime(compile="off"),
                splits=splits,
                quiet=True,
                fresh=True,
            )
            keep = ("top1", "raw", "training_seconds", "first_step_seconds")
            row |= {key: result.summary.get(key) for key in keep}
            row["summary"] = result.summary
        except Exception as error:
            traceback.print_exc()
            row["error"] = f"{type(error).__name__}: {error}"[:500]
        row["seconds"] = round(time.monotonic() - started, 1)
        results.put(row)


class Search:
    """Trials of one seed, run by several processes."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.ends = time.monotonic() + 60 * options.minutes
        spawn = multiprocessing.get_context("spawn")
        self.tasks, self.results = spawn.Queue(), spawn.Queue()
        self.file: Path = options.out
        self.file.parent.mkdir(parents=True, exist_ok=True)
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        rows = [json.loads(line) for line in lines]
        self.rows = {row["trial"]: row for row in rows if "error" not in row}
        arguments = (options.data, options.runs, self.tasks, self.results)
        self.workers = [
            spawn.Process(target=work, args=arguments) for _ in range(options.workers)
        ]
        for worker in self.workers:
            worker.start()

    def run(self, trials: dict[str, Recipe]) -> dict[str, float]:
        """The top-1 of each trial that ends in time."""
        waiting = [name for name in trials if name not in self.rows]
        for name in waiting:
            self.tasks.put((name, trials[name]))
        while waiting and time.monotonic() < self.ends:
            try:
                row = self.results.get(timeout=1.0)
            except Exception:  # queue.Empty
                if not any(worker.is_alive() for worker in self.workers):
                    break
                continue
            waiting.remove(row["trial"])
            row["recipe"] = {
                "model": trials[row["trial"]].model,
                "batch_size": trials[row["trial"]].batch_size,
            }
            with self.file.open("a") as out:
                out.write(json.dumps(row) + "\n")
            short = {key: row.get(key) for key in ("top1", "seconds", "error")}
            print(row["trial"], json.dumps(short), flush=True)
            if "error" not in row:
                self.rows[row["trial"]] = row
        return {
            name: self.rows[name]["top1"]
            for name in trials
            if name in self.rows and self.rows[name].get("top1") is not None
        }

    def end(self) -> None:
        """Stops trials that have not ended, and what their processes have started."""
        self.tasks.cancel_join_thread()
        for worker in self.workers:
            worker.terminate()
            worker.join(5)
            worker.kill()


def main() -> None:
    """Models first, then other settings of the best one, then gains together."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", default="/tmp/photo-search")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--holdout", type=int, default=HOLDOUT)
    parser.add_argument("--gain", type=float, default=0.7, help="points that count")
    options = parser.parse_args()
    search = Search(options)
    base = replace(
        plain(options.epochs), holdout=options.holdout, evaluate_every=options.epochs
    )
    chosen: dict[str, Change] = {}
    for stage, changes in STAGES.items():
        made = both(*chosen.values())
        label = "+".join(chosen) or "base"
        trials = {
            f"{options.epochs}/{label}/{name}": change(made(base))
            for name, change in changes.items()
        }
        scores = search.run(trials)
        by_name = {name.rsplit("/", 1)[1]: score for name, score in scores.items()}
        print(stage, by_name, flush=True)
        if not by_name:
            break
        if stage == "models":
            best = max(by_name, key=lambda name: by_name[name])
            before = by_name[best]
            chosen[best] = changes[best]
            continue
        gains = [
            name
            for name in sorted(by_name, key=lambda name: -by_name[name])
            if by_name[name] > before + options.gain
        ]
        together = {
            f"{options.epochs}/{label}/{'+'.join(gains[:count])}": both(
                *(changes[name] for name in gains[:count])
            )(made(base))
            for count in range(2, min(len(gains), 4) + 1)
        }
        print("together", search.run(together), flush=True)
    search.end()


if __name__ == "__main__":
    main()
