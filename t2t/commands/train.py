"""`t2t train`: train a model."""

import sys
import time
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional

from t2t.commands.options import (
    INTERRUPTED,
    CodeOption,
    CompileOption,
    DeviceOption,
    LabelColumnsOption,
    LabelPatternOption,
    LabelsOption,
    MaxDamagedOption,
    MaxPixelsOption,
    PrecisionOption,
    SetOption,
    at_least,
    at_most,
    check_max_pixels,
    check_single_process,
    option,
    parse_size,
    run_code,
    warn,
)
from t2t.config import MAX_HANG_MINUTES, MAX_WORKERS
from t2t.data.decoding.damage import DEFAULT_MAX_DAMAGED, damage_limit
from t2t.data.decoding.headers import DEFAULT_MAX_PIXELS
from t2t.data.streaming.launcher import start_launchers_early
from t2t.errors import UserError
from t2t.log_level import prints_info
from t2t.sigint import exit_quietly_on_sigint, restore_sigint
from t2t.torchrun import is_main
from t2t.training.compile_server import start_compiling_early
from t2t.training.start_cuda import start_cuda_early

if TYPE_CHECKING:
    from t2t.training.result import Result


def train(
    recipe: Annotated[
        Positional[str],
        option(
            "A name from `t2t recipes`, FILE.py:NAME, a recipe.json or a run folder.",
            "(default: digits; with --data or --from, chosen for them)",
            "[RECIPE]",
        ),
    ] = "default",
    *,
    data: Annotated[
        str | None,
        option(
            "Training images: a folder, files or a data set's name.",
            "",
            "SOURCE",
        ),
    ] = None,
    labels: LabelsOption = (),
    label_columns: LabelColumnsOption = None,
    label_pattern: LabelPatternOption = None,
    from_: Annotated[
        str | None,
        option(
            "Fine-tune trained weights: a run folder, a file of weights, builtin, a "
            "timm model's name, a URL or hf-hub:owner/name.",
            "",
            "WEIGHTS",
            "from",
        ),
    ] = None,
    freeze: Annotated[
        bool, option("Train only the head; keep the other weights.")
    ] = False,
    image_size: Annotated[
        str | None,
        option(
            "Image size, as 224 or 192x256 (height first).",
            "(default: that of the recipe, or of --from)",
            "SIZE",
        ),
    ] = None,
    teacher: Annotated[
        str | None,
        option(
            "Distil from this teacher; takes the same values as --from.",
            "",
            "WEIGHTS",
        ),
    ] = None,
    distill: Annotated[
        Literal["soft", "hard"] | None,
        option(
            "Learn the teacher's probabilities (soft) or its prediction (hard).",
            "(default: soft; hard with a distillation token)",
        ),
    ] = None,
    distill_token: Annotated[
        bool, option("Add a distillation token, which learns from the teacher.")
    ] = False,
    folds: Annotated[
        int | None,
        option(
            "Cross-validate: train N times, each time evaluating on another fold.",
            "",
            "N",
        ),
    ] = None,
    folder: Annotated[
        str | None, option("Run folder.", "(default: runs/NAME)", "PATH")
    ] = None,
    set: SetOption = (),
    code: CodeOption = (),
    epochs: Annotated[int | None, option("Same as --set epochs=N.", "", "N")] = None,
    minutes: Annotated[
        float | None,
        option("Train as many epochs as fit into N minutes here.", "", "N"),
    ] = None,
    seed: Annotated[int | None, option("Same as --set seed=N.", "", "N")] = None,
    balance: Annotated[
        Literal["sampling", "weights"] | None,
        option(
            "Balance uneven classes: show images of small classes more often "
            "(sampling), or count them more in the loss (weights); --set "
            "balance_power= sets how much.",
            "(default: no balance)",
        ),
    ] = None,
    keep: Annotated[
        Literal["last", "best"] | None,
        option(
            "The final model: the weights of the last evaluation or of the best one.",
            "(default: last)",
        ),
    ] = None,
    patience: Annotated[
        int | None,
        option("Stop after N evaluations without a better top-1.", "", "N"),
    ] = None,
    device: DeviceOption = None,
    precision: PrecisionOption = None,
    residual: Annotated[
        Literal["half", "fp32"],
        option("Residual stream: half precision (faster), or fp32.", "(default: half)"),
    ] = "half",
    compile: CompileOption = "auto",
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
    max_damaged: MaxDamagedOption = DEFAULT_MAX_DAMAGED,
    checkpoint_minutes: Annotated[
        float, option("Minutes between checkpoints.", "(default: 5)", "N")
    ] = 5.0,
    hang_minutes: Annotated[
        float,
        option(
            "End the run once a process has hung for N minutes; 0: never.",
            "(default: 20)",
            "N",
        ),
    ] = 20.0,
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
      t2t train --data photos/ --minutes 10
      t2t train --data photos/ --from builtin
      t2t train --data photos/ --balance sampling --keep best --patience 10
      t2t train --data photos/ --folds 5
      t2t train --data photos/ --from resnet50 --freeze
      t2t train --data photos/ --teacher runs/large
      t2t train cifar10.t2t_vit_7 --data path/to/cifar10
      t2t train my_runs.py:wide --data photos/
      t2t train imagenet.t2t_vit_14 --data path/to/imagenet --micro-batch 128
      torchrun --nproc-per-node 8 -m t2t train imagenet.t2t_vit_14 --data path
    """
    if dry_run:
        check_single_process("t2t train --dry-run")
    at_most(MAX_WORKERS, "--workers", at_least(1, "--workers", workers))
    at_most(MAX_WORKERS, "--threads", at_least(1, "--threads", threads))
    check_max_pixels(max_pixels)
    at_least(1, "--patience", patience)
    damage_limit(max_damaged, 0)
    at_least(1, "--micro-batch", micro_batch)
    if not checkpoint_minutes > 0:
        raise UserError(
            f"--checkpoint-minutes {checkpoint_minutes:g} is too small: give more "
            "than 0."
        )
    if not 0 <= hang_minutes <= MAX_HANG_MINUTES:
        raise UserError(
            f"--hang-minutes {hang_minutes:g} must be from 0 to {MAX_HANG_MINUTES:,}."
        )

    if not dry_run:
        start_launchers_early(device)
        start_compiling_early(device)
        start_cuda_early(device)
    run_code(code)

    # While two threads import, Python can lose Ctrl-C and wait for ever.
    exit_quietly_on_sigint()
    from t2t.process_age import process_age
    from t2t.recipes.train import train as start

    restore_sigint()
    result = start(
        recipe,
        data=data,
        labels=labels,
        label_columns=label_columns,
        label_pattern=label_pattern,
        from_=from_,
        freeze=freeze,
        image_size=None if image_size is None else parse_size(image_size),
        teacher=teacher,
        distill=distill,
        distill_token=distill_token,
        folder=folder,
        set=set,
        epochs=epochs,
        minutes=minutes,
        seed=seed,
        balance=balance,
        keep=keep,
        patience=patience,
        folds=folds,
        device=device,
        precision=precision,  # type: ignore[arg-type]
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
        fresh=fresh,
        dry_run=dry_run,
        started=time.monotonic() - process_age(),
    )
    if dry_run:
        return
    if not result.finished:
        sys.exit(INTERRUPTED)
    if is_main():
        report_result(result, device)


def report_result(result: "Result", device: str | None) -> None:
    """Prints the result of a finished run, and writes its page of mistakes."""
    from t2t.commands.folds_summary import folds_summary
    from t2t.commands.train_report import write_report
    from t2t.commands.train_summary import train_summary
    from t2t.screen import print_page

    warn(*result.notes)
    if result.folds:
        if prints_info():
            print_page(lambda width: folds_summary(result))
        return
    if not result.already_finished:
        if note := write_report(result.folder, result.summary, device):
            warn(note)
    elif prints_info():
        print(f"{result.folder} is already trained; --fresh trains it again.")
    if prints_info():
        print_page(lambda width: train_summary(result.folder, result.summary))
