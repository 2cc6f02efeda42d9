"""Trials of the recipe for photographs on one GPU, one after the other.

    python benchmarks/photo_trials.py imagewoof-160 --out rows.jsonl \
        plain@20 pyramid+rate_x2@20 pyramid+rate_x2+colours@80

A trial is a sum of changes to what `t2t train --data` chooses for its epochs, and is
scored on images held out of the training set (--official: on validation images). One
process runs them all: imports, kernels and decoded images are shared.
"""

import argparse
import gc
import json
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from t2t.data.sources import Splits
from t2t.recipes.photos import SPLITS, photo_recipe
from t2t.training.loaders import open_data
from t2t.training.recipe import ProgressiveResizing, Recipe, TokenDropping
from t2t.training.runtime import Runtime
from t2t.training.train import train

HOLDOUT = 2_000
STOPPED = "stopped before its end"
IMAGEWOOF = 9_025
Change = Callable[[Recipe], Recipe]
CONVOLUTIONS = ("axial", "conv_attention", "conv_attention", "conv_attention")


def model(name: str | None = None, **settings: Any) -> Change:
    """Another model, or other settings of the model; it sees all tokens."""

    def changed(recipe: Recipe) -> Recipe:
        args = recipe.model_args
        if name is not None and "vit" not in name:  # a pyramid, or timm's
            args = {}
        return replace(
            recipe,
            model=name or recipe.model,
            model_args={**args, **settings},
            token_dropping=TokenDropping(),
        )

    return changed


def augment(**settings: Any) -> Change:
    """Other settings of the augmentation."""
    return lambda recipe: replace(
        recipe, augmentation=replace(recipe.augmentation, **settings)
    )


def optimizer(**settings: Any) -> Change:
    """Other settings of the optimizer."""
    return lambda recipe: replace(
        recipe, optimizer=replace(recipe.optimizer, **settings)
    )


def rate(muon: float, adamw: float) -> Change:
    """The learning rates of Muon and of AdamW times a factor each."""

    def changed(recipe: Recipe) -> Recipe:
        own = recipe.optimizer
        assert own.adamw_lr is not None
        scaled = replace(own, lr=own.lr * muon, adamw_lr=own.adamw_lr * adamw)
        return replace(recipe, optimizer=scaled)

    return changed


def batch(factor: float) -> Change:
    """A batch size times a factor."""
    return lambda recipe: replace(recipe, batch_size=int(recipe.batch_size * factor))


def crop(**settings: Any) -> Change:
    """Other crops."""
    return lambda recipe: replace(recipe, crop=replace(recipe.crop, **settings))


def fields(**settings: Any) -> Change:
    """Other fields of the recipe."""
    return lambda recipe: replace(recipe, **settings)


CHANGES: dict[str, Change] = {
    "plain": lambda recipe: recipe,
    "all_tokens": fields(token_dropping=TokenDropping()),
    "depthwise": model(mlp="depthwise"),
    "conv_attention": model(mixer="conv_attention"),
    "conv_tokens": model(tokenizer="t2t_conv"),
    "patches": model(tokenizer="patch", patch_size=8),
    # The ViT-S/16 of the paper: 8×8 tokens.
    "vit_wide": model(
        tokenizer="patch", patch_size=16, dim=768, depth=8, num_heads=8, mlp_ratio=3
    ),
    "shallow_wide": model(dim=768, depth=4, num_heads=12),
    "small_tokens": model(splits=SPLITS[4]),
    "pyramid": model("t2t_pyramid_base"),
    "pyramid_small": model("t2t_pyramid_small"),
    "pyramid_attention": model("t2t_pyramid_base", pyramid_mixers=()),
    "pyramid_conv": model("t2t_pyramid_base", pyramid_mixers=CONVOLUTIONS),
    "pyramid_fine": model(
        "t2t_pyramid_base",
        splits=((7, 2, 3), (3, 1, 1)),
        pyramid_mixers=("axial", "axial", "conv_attention", "conv_attention"),
    ),
    "resnet18": lambda recipe: replace(model("resnet18")(recipe), drop_path=0.0),
    "rate_x2": rate(2, 2),
    "rate_x4": rate(4, 4),
    "rate_half": rate(0.5, 0.5),
    "adamw_rate_x3": rate(1, 3),
    "adamw": lambda recipe: replace(recipe, optimizer=recipe.optimizer.as_adamw()),
    "decay_x3": optimizer(weight_decay=0.15),
    "batch_half": batch(0.5),
    "batch_x2": batch(2),
    "small_crops": crop(scale=(0.15, 1.0)),
    "large_crops": crop(scale=(0.5, 1.0)),
    "no_mixing": augment(mix_probability=0.0),
    "mixed_always": augment(cutmix=1.0, mix_probability=1.0),
    "colours": augment(rand_augment="rand-m5-mstd0.5-inc1"),
    "strong_colours": augment(rand_augment="rand-m9-mstd0.5-inc1"),
    "no_colours": augment(rand_augment=None),
    "no_mixup": augment(mixup=0.0),
    "no_erasing": augment(erase=0.0),
    "drop_path": fields(drop_path=0.1),
    "drop_path_x2": fields(drop_path=0.2),
    "no_drop_path": fields(drop_path=0.0),
    "repeats": fields(repeats=2),
    "growing": fields(
        progressive_resizing=ProgressiveResizing(initial_scale=0.75, until=0.6)
    ),
}


def changes_of(trial: str) -> list[str]:
    """The names of a trial's changes."""
    return trial.partition("@")[0].split("+")


def recipe_of(trial: str, num_images: int, holdout: int) -> Recipe:
    """The recipe of a trial: changes cat by +, then @ and the epochs."""
    _, _, epochs = trial.partition("@")
    recipe = photo_recipe(
        trial,
        "imagewoof",
        num_images=num_images,
        image_size=(128, 128),
        epochs=int(epochs or 20),
    )
    for name in changes_of(trial):
        recipe = CHANGES[name](recipe)
    return replace(recipe, holdout=holdout, evaluate_every=recipe.epochs)


def run(recipe: Recipe, folder: Path, splits: Splits) -> dict[str, Any]:
    """Trains a trial; its row."""
    started = time.monotonic()
    row: dict[str, Any] = {"trial": recipe.name, "seed": recipe.seed}
    try:
        result = train(
            recipe,
            folder=folder / recipe.name,
            runtime=Runtime(compile="off"),
            splits=splits,
            quiet=True,
            fresh=True,
        )
        row["summary"] = result.summary
        row["top1"] = result.summary["top1"]
        row["last_loss"] = last_loss(folder / recipe.name)
        if not result.finished:
            row["error"] = STOPPED
    except Exception as error:
        traceback.print_exc()
        row["error"] = f"{type(error).__name__}: {error}"[:500]
    row["seconds"] = round(time.monotonic() - started, 1)
    gc.collect()
    torch.cuda.empty_cache()
    return row


def last_loss(folder: Path) -> float | None:
    """The last training loss that was logged."""
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return next((row["loss"] for row in reversed([*rows]) if "loss" in row), None)


def main() -> int:
    """Runs the trials that fit into the time; 1 if one failed or did not fit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("trials", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("/tmp/photo-trials"))
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--holdout", type=int, default=HOLDOUT)
    parser.add_argument("--official", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    names = {name for each in options.trials for name in changes_of(each)}
    if unknown := sorted(names - {*CHANGES}):
        parser.error(f"{unknown[0]} is no change; there are {', '.join(CHANGES)}")
    ends = time.monotonic() + 60 * options.minutes
    holdout = 0 if options.official else options.holdout
    splits = None
    status = 0
    for trial in options.trials:
        if time.monotonic() > ends:
            print(f"{trial}: no time left")
            status = 1
            continue
        recipe = recipe_of(trial, IMAGEWOOF - holdout, holdout)
        recipe = replace(recipe, data=options.data, seed=options.seed)
        splits = splits or open_data(recipe)
        row = run(recipe, options.runs, splits)
        with options.out.open("a") as out:
            out.write(json.dumps(row) + "\n")
        shown = ("top1", "last_loss", "seconds", "error")
        print(trial, json.dumps({key: row.get(key) for key in shown}), flush=True)
        status = 1 if row.get("error") else status
        if row.get("error") == STOPPED:
            return 1
    return status


if __name__ == "__main__":
    sys.exit(main())
