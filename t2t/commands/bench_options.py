"""Options of `t2t bench`: which go together, and what they select."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from t2t.commands.options import at_least
from t2t.errors import UserError

if TYPE_CHECKING:
    from t2t.training.recipe import Recipe
    from t2t.training.runtime import Runtime

Precision = Literal["bf16", "fp16", "fp32"]
Parallelism = Literal["ddp", "fsdp", "hybrid"]


def check_combination(
    models: Sequence[str],
    recipe: str | None,
    data: str | None,
    parallelism: str | None,
    mode: str,
    grow: Sequence[str],
    out: str | None,
) -> None:
    """Raises an error for options that are mutually exclusive."""
    if not models and recipe is None:
        raise UserError(
            "No model is given; name one from `t2t models`, or give --recipe."
        )
    if (recipe or data or parallelism) and (mode != "train" or grow):
        raise UserError(
            "--data, --recipe and --parallelism time the trainer's own step: leave "
            "--mode and --grow out."
        )
    if grow and (out is None or out.lower().endswith(".png")):
        raise UserError(
            "--grow draws its picture beside the rows, as PATH.png: give --out "
            "PATH.json for those."
        )


def check_unused(why: str, options: Mapping[str, object]) -> None:
    """Raises an error for options that would have no effect."""
    given = [name for name, value in options.items() if value not in (None, False, ())]
    if given:
        raise UserError(f"Leave {' and '.join(given)} out: {why}.")


def check_numbers(
    batches: Sequence[int],
    image_sizes: Sequence[int],
    seconds: float,
    repeat: int | None,
) -> None:
    """Raises an error for numbers out of range."""
    for number in batches:
        at_least(1, "--batch-size", number)
    for number in image_sizes:
        at_least(1, "--image-size", number)
    at_least(1, "--repeat", repeat)
    if not 0 < seconds < math.inf:
        raise UserError(f"--seconds {seconds:g} must be more than 0, and finite.")


def select_recipes(
    models: Sequence[str],
    name: str | None,
    image_sizes: Sequence[int],
    batches: Sequence[int],
) -> list["Recipe"]:
    """Every combination of the recipe, or ImageNet's, with models, sizes, batches."""
    from dataclasses import replace

    from t2t.lab.bench.cases import default_side
    from t2t.recipes import imagenet
    from t2t.recipes.open_recipe import open_recipe
    from t2t.recipes.settings import apply_settings

    if name is None:
        chosen = [
            replace(
                imagenet.published(model),
                image_size=(default_side(model), default_side(model)),
            )
            for model in models
        ]
    else:
        recipe = apply_settings(open_recipe(name), None, ())
        others = [apply_settings(recipe, None, (f"model={model}",)) for model in models]
        chosen = others or [recipe]
    return [
        replace(
            each,
            image_size=(size, size) if size else each.image_size,
            batch_size=batch or each.batch_size,
        )
        for each in chosen
        for size in image_sizes or [0]
        for batch in batches or [0]
    ]


def select_runtimes(
    device: str | None,
    precisions: Sequence[Precision],
    launch: str | None,
    workers: int | None,
    on_cuda: bool,
    parallelism: Parallelism | None = None,
) -> list["Runtime"]:
    """One runtime per precision."""
    from t2t.lab.bench.cases import COMPILED, REPLAYED
    from t2t.training.runtime import Compile, Runtime

    sharded = parallelism in ("fsdp", "hybrid")
    if on_cuda and sharded and launch not in (None, "eager_graph", "compiled"):
        raise UserError(
            f"--launch {launch} is not possible with --parallelism {parallelism}, "
            "whose step is a CUDA graph if it is not compiled; give eager_graph or "
            "compiled, or leave it out."
        )
    if on_cuda and not sharded and launch not in (None, *REPLAYED):
        raise UserError(
            f"--launch {launch} is not possible here: on CUDA the trainer's step is a "
            "CUDA graph; give graph (compiled) or eager_graph, or leave it out."
        )
    compiled: Compile = "on" if launch in COMPILED else "off"
    return [
        Runtime(
            device=device,
            precision=each,
            compile="auto" if launch is None else compiled,
            workers=workers,
            parallelism=parallelism or "ddp",
        )
        for each in precisions
    ]
