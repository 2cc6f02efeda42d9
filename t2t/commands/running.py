"""Training: recipes, runs and what comes at their end."""

import shlex
import statistics
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional

from t2t.commands.options import (
    INTERRUPTED,
    CompileChoice,
    DeviceChoice,
    JsonFlag,
    MaxPixels,
    Overrides,
    PrecisionChoice,
    as_bool,
    at_least,
    at_most,
    check_alone,
    check_max_pixels,
    check_said_once,
    option,
    value_set,
)
from t2t.config import MOST_WORKERS, override
from t2t.data.decoding.headers import DEFAULT_MAX_PIXELS
from t2t.errors import UserError, suggest
from t2t.torchrun import is_main

if TYPE_CHECKING:
    from t2t.training.recipe import Recipe


def recipes(
    filter: Annotated[
        Positional[str],
        option("Part of a name: 'cifar', 't2t_vit_14'.", "", "[FILTER]"),
    ] = "",
    *,
    json: JsonFlag = False,
) -> None:
    """List the recipes: named runs, with image size, epochs, batch and what they are.

    Examples:
      t2t recipes
      t2t recipes cifar --json
    """
    from t2t.recipes import about, all_recipes
    from t2t.screen import info, recipe_table, say_json

    wanted = filter.lower()
    found = {name: make for name, make in all_recipes().items() if wanted in name}
    if not found:
        hint = suggest(wanted, all_recipes()) or " `t2t recipes` lists all."
        raise UserError(f"No recipe has {filter!r} in its name.{hint}")
    rows = [(make(), about(make)) for make in found.values()]
    if json:
        from t2t.config import to_json

        say_json([to_json(recipe) for recipe, _ in rows])
    else:
        info(lambda width: recipe_table(rows, width))


def train(
    recipe: Annotated[
        Positional[str],
        option(
            "A name of `t2t recipes`, a recipe.json, or a run that has one.",
            "(default: digits, or with --data one that suits the images)",
            "[RECIPE]",
        ),
    ] = "digits",
    *,
    data: Annotated[
        str | None,
        option("Images to train on: a folder, files or a name.", "", "SOURCE"),
    ] = None,
    folder: Annotated[
        str | None, option("Where the run lives.", "(default: runs/NAME)", "PATH")
    ] = None,
    set: Overrides = (),
    epochs: Annotated[int | None, option("As --set epochs=N.", "", "N")] = None,
    seed: Annotated[int | None, option("As --set seed=N.", "", "N")] = None,
    device: DeviceChoice = None,
    precision: PrecisionChoice = None,
    residual: Annotated[
        Literal["half", "fp32"],
        option("Residual stream: half precision (faster), or fp32.", "(default: half)"),
    ] = "half",
    compile: CompileChoice = None,
    micro_batch: Annotated[
        int | None,
        option(
            "Images per forward pass, to save memory; gradients are accumulated. The "
            "step is the same except for dropout, stochastic depth and batch norm.",
            "",
            "N",
        ),
    ] = None,
    parallelism: Annotated[
        Literal["ddp", "fsdp", "hybrid"],
        option("With torchrun: ddp, fsdp or hybrid.", "(default: ddp)"),
    ] = "ddp",
    workers: Annotated[
        int | None, option("Workers that read images.", "(default: all cores)", "N")
    ] = None,
    threads: Annotated[
        int | None,
        option(
            "CPU threads for computing.",
            "(default: the number of idle cores)",
            "N",
        ),
    ] = None,
    max_pixels: MaxPixels = DEFAULT_MAX_PIXELS,
    checkpoint_minutes: Annotated[
        float, option("Time between checkpoints.", "(default: 5)", "N")
    ] = 5.0,
    fresh: Annotated[
        bool, option("Delete the run in the folder and start over.")
    ] = False,
    dry_run: Annotated[
        bool, option("Print the recipe, steps, time and memory; train nothing.")
    ] = False,
) -> None:
    """Train a model; the same command again goes on where it was stopped.

    Examples:
      t2t train
      t2t train --data photos/ --epochs 100
      t2t train cifar10.t2t_vit_7 --data path/to/cifar10
      t2t train imagenet.t2t_vit_14 --data path/to/imagenet --micro-batch 128
      torchrun --nproc-per-node 8 -m t2t train imagenet.t2t_vit_14 --data path
    """
    if dry_run:
        check_alone("t2t train --dry-run")
    if workers is not None:
        at_most(MOST_WORKERS, "--workers", at_least(1, "--workers", workers))
    if threads is not None:
        at_most(MOST_WORKERS, "--threads", at_least(1, "--threads", threads))
    check_max_pixels(max_pixels)
    if micro_batch is not None:
        at_least(1, "--micro-batch", micro_batch)
    if not checkpoint_minutes > 0:
        raise UserError(
            f"--checkpoint-minutes {checkpoint_minutes:g} is too small: give more "
            "than 0."
        )

    check_said_once({"data": data, "epochs": epochs, "seed": seed}, set)
    start_from = value_set("weights", set)
    named = open_recipe(recipe, data, value_set("model", set), start_from)
    if seed is not None:
        set = (f"seed={at_least(0, '--seed', seed)}", *set)
    chosen = changed(named, epochs, set)
    notes = schedule_notes(named, chosen, set)

    from t2t.training.loop import Runtime
    from t2t.training.loop import train as start

    runtime = Runtime(
        device=device,
        precision=precision,  # type: ignore[arg-type]
        residual=residual,
        compile=as_bool(compile),
        micro_batch=micro_batch,
        parallelism=parallelism,
        workers=workers,
        threads=threads,
        max_pixels=max_pixels,
        checkpoint_minutes=checkpoint_minutes,
    )
    if dry_run:
        from t2t.training.forecast.estimate import estimate

        print("\n".join([estimate(chosen, runtime), *notes]))
        return
    result = start(chosen, folder=folder, runtime=runtime, fresh=fresh, notes=notes)
    if not result.finished:
        sys.exit(INTERRUPTED)
    if is_main():
        from t2t.commands.closing import closing_page
        from t2t.screen import info

        if result.was_finished:
            print(f"{result.folder} was trained before; --fresh trains it anew.")
        info(lambda width: closing_page(result.folder, result.summary))


def changed(
    recipe: "Recipe", epochs: int | None, settings: tuple[str, ...]
) -> "Recipe":
    """A recipe with other epochs and fields, and what must follow them."""
    from t2t.models.zoo import OURS
    from t2t.recipes.own import with_model

    words: list[str] = []
    model = value_set("model", settings)
    if model not in (None, recipe.model) and model not in OURS:
        recipe = with_model(recipe, model)
    if epochs is not None:
        at_least(1, "--epochs", epochs)
    elif (text := value_set("epochs", settings) or "").isdecimal():
        epochs = int(text)
    if epochs is not None:
        words += shorter_or_longer(recipe, epochs, settings)
    channels = value_set("channels", settings)
    if channels is not None and channels.isdecimal():
        words += for_channels(recipe, int(channels))
    recipe = override(recipe, [*words, *settings])
    if settings:
        check_model(recipe)
    return recipe


def check_model(recipe: "Recipe") -> None:
    """Refuses a model that cannot be, before folders are compared and data opened."""
    import torch

    from t2t.training.state import build_model

    with torch.device("meta"):
        build_model(recipe, num_classes=1)


def for_channels(recipe: "Recipe", channels: int) -> list[str]:
    """The recipe's mean and deviation, averaged for another number of channels."""
    if channels == recipe.channels:
        return []
    return [
        f"augmentation.{name}={[round(statistics.fmean(values), 4)] * channels}"
        for name, values in (
            ("mean", recipe.augmentation.mean),
            ("std", recipe.augmentation.std),
        )
    ]


def shorter_or_longer(
    recipe: "Recipe", epochs: int, settings: tuple[str, ...]
) -> list[str]:
    """Another number of epochs, with warm-up and floor in proportion if they must."""
    from t2t.training.recipe import WITHIN_EPOCHS

    given: dict[str, float] = {}
    for name in WITHIN_EPOCHS:
        text = value_set(f"schedule.{name}", settings)
        if text is not None:
            with suppress(ValueError):  # checked later with all fields
                given[name] = float(text)
    changes = recipe.schedule_for(epochs, given)
    words = [f"schedule.{name}={value}" for name, value in changes.items()]
    # A warm-up of less than an epoch needs a learning rate per step.
    if changes and recipe.schedule.update_every == "epoch":
        words.append("schedule.update_every=step")
    return [f"epochs={epochs}", *words]


def schedule_notes(
    before: "Recipe", after: "Recipe", settings: tuple[str, ...]
) -> list[str]:
    """A sentence on warm-up and floor epochs that were scaled with the epochs."""
    names = {"warmup_epochs": "warm-up", "floor_epochs": "floor"}
    changes = [
        f"{what} epochs {getattr(before.schedule, name):g} → "
        f"{getattr(after.schedule, name):.3g}"
        for name, what in names.items()
        if value_set(f"schedule.{name}", settings) is None
        and getattr(before.schedule, name) != getattr(after.schedule, name)
    ]
    if not changes:
        return []
    if before.schedule.update_every != after.schedule.update_every:
        changes.append(f"learning rate updated every {after.schedule.update_every}")
    return [
        f"The schedule was scaled with the epochs ({before.epochs} → {after.epochs}): "
        f"{', '.join(changes)}."
    ]


def open_recipe(
    name: str, data: str | None, model: str | None = None, weights: str | None = None
) -> "Recipe":
    """A recipe by its name or from a file, with the data it is to be trained on.

    A recipe made for the data also fits the model and weights, if given.
    """
    from dataclasses import replace
    from pathlib import Path

    from t2t.recipes import MODULES, all_recipes, find_recipe

    if name.endswith(".json") or Path(name, "recipe.json").exists():
        from t2t.training.run_folder import RECIPE, read_recipe_file

        path = Path(name).expanduser()
        path = path / RECIPE if path.is_dir() else path
        if not path.exists():
            raise UserError(f"There is no recipe {path}; `t2t recipes` lists names.")
        chosen = read_recipe_file(path)
    elif name == "digits" and data not in (None, "digits"):
        from t2t.recipes.own import for_images

        chosen = for_images(data, model, weights)
    elif name not in {*all_recipes(), *MODULES} and Path(name).expanduser().exists():
        raise UserError(
            f"There is no recipe {name!r}, but files of that name: did you mean "
            f"t2t train --data {shlex.quote(name)}?"
        )
    else:
        chosen = find_recipe(name)
    return chosen if data is None else replace(chosen, data=data)
