"""`t2t train`: train a model."""

import sys
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional

from t2t.commands.options import (
    INTERRUPTED,
    CodeOption,
    CompileOption,
    DeviceOption,
    MaxPixelsOption,
    PrecisionOption,
    SetOption,
    as_bool,
    at_least,
    at_most,
    check_contradictions,
    check_max_pixels,
    check_single_process,
    option,
    run_code,
    set_value,
)
from t2t.config import MAX_WORKERS
from t2t.data.decoding.headers import DEFAULT_MAX_PIXELS
from t2t.errors import UserError
from t2t.torchrun import is_main


def train(
    recipe: Annotated[
        Positional[str],
        option(
            "A name from `t2t recipes`, FILE.py:NAME, a recipe.json or a run folder.",
            "(default: digits, or with --data a recipe for the image size)",
            "[RECIPE]",
        ),
    ] = "digits",
    *,
    data: Annotated[
        str | None,
        option("Images to train on: a folder, files or a name.", "", "SOURCE"),
    ] = None,
    folder: Annotated[
        str | None, option("Run folder.", "(default: runs/NAME)", "PATH")
    ] = None,
    set: SetOption = (),
    code: CodeOption = (),
    epochs: Annotated[int | None, option("Same as --set epochs=N.", "", "N")] = None,
    seed: Annotated[int | None, option("Same as --set seed=N.", "", "N")] = None,
    device: DeviceOption = None,
    precision: PrecisionOption = None,
    residual: Annotated[
        Literal["half", "fp32"],
        option("Residual stream: half precision (faster), or fp32.", "(default: half)"),
    ] = "half",
    compile: CompileOption = None,
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
        int | None, option("Data loading workers.", "(default: all cores)", "N")
    ] = None,
    threads: Annotated[
        int | None,
        option(
            "CPU threads for computing.",
            "(default: the number of idle cores)",
            "N",
        ),
    ] = None,
    max_pixels: MaxPixelsOption = DEFAULT_MAX_PIXELS,
    checkpoint_minutes: Annotated[
        float, option("Minutes between checkpoints.", "(default: 5)", "N")
    ] = 5.0,
    fresh: Annotated[
        bool, option("Delete the run in the folder and start over.")
    ] = False,
    dry_run: Annotated[
        bool, option("Print the recipe, steps, time and memory without training.")
    ] = False,
) -> None:
    """Train a model. Run the same command again to resume an interrupted run.

    Examples:
      t2t train
      t2t train --data photos/ --epochs 100
      t2t train cifar10.t2t_vit_7 --data path/to/cifar10
      t2t train my_runs.py:wide --data photos/
      t2t train imagenet.t2t_vit_14 --data path/to/imagenet --micro-batch 128
      torchrun --nproc-per-node 8 -m t2t train imagenet.t2t_vit_14 --data path
    """
    if dry_run:
        check_single_process("t2t train --dry-run")
    if workers is not None:
        at_most(MAX_WORKERS, "--workers", at_least(1, "--workers", workers))
    if threads is not None:
        at_most(MAX_WORKERS, "--threads", at_least(1, "--threads", threads))
    check_max_pixels(max_pixels)
    if micro_batch is not None:
        at_least(1, "--micro-batch", micro_batch)
    if not checkpoint_minutes > 0:
        raise UserError(
            f"--checkpoint-minutes {checkpoint_minutes:g} is too small: give more "
            "than 0."
        )

    run_code(code)

    from t2t.commands.recipe_options import apply_settings, schedule_notes
    from t2t.recipes.open_recipe import open_recipe

    check_contradictions({"data": data, "epochs": epochs, "seed": seed}, set)
    start_from = set_value("weights", set)
    base = open_recipe(recipe, data, set_value("model", set), start_from)
    if seed is not None:
        set = (f"seed={at_least(0, '--seed', seed)}", *set)
    chosen = apply_settings(base, epochs, set)
    notes = schedule_notes(base, chosen, set)

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
    if folder is None and data is None and chosen == base and is_started_run(recipe):
        folder = recipe  # whatever its name: it may have been moved
    result = start(chosen, folder=folder, runtime=runtime, fresh=fresh, notes=notes)
    if not result.finished:
        sys.exit(INTERRUPTED)
    if is_main():
        from t2t.commands.train_summary import train_summary
        from t2t.screen import print_page

        if result.already_finished:
            print(f"{result.folder} is already trained; --fresh trains it again.")
        print_page(lambda width: train_summary(result.folder, result.summary))


def is_started_run(recipe: str) -> bool:
    """Whether a recipe is given as the folder of a run, to resume it there."""
    from t2t.training.run_folder import RunFolder

    run_folder = RunFolder(Path(recipe).expanduser())
    return run_folder.is_run() and run_folder.has_started()
