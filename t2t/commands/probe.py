"""`t2t probe`: score the features of any weights."""

from pathlib import Path
from typing import Annotated

from t2t.commands.options import (
    BatchSizeOption,
    CodeOption,
    DeviceOption,
    JsonFlag,
    LabelColumnsOption,
    LabelPatternOption,
    LabelsOption,
    MaxPixelsOption,
    ModelOption,
    PrecisionOption,
    WeightsArgument,
    at_least,
    check_max_pixels,
    check_writable,
    option,
    run_code,
    warn,
    warn_skipped,
)
from t2t.data.decoding.headers import DEFAULT_MAX_PIXELS
from t2t.errors import UserError, suggest

FILE_NAME = "probe.json"
METHODS = ("linear", "knn", "few-shot", "finetune")


def probe(
    weights: WeightsArgument,
    *,
    data: Annotated[
        str | None,
        option("Labelled images.", "(default: the run's own)", "SOURCE"),
    ] = None,
    labels: LabelsOption = (),
    label_columns: LabelColumnsOption = None,
    label_pattern: LabelPatternOption = None,
    methods: Annotated[
        str,
        option(
            "linear, knn, few-shot, finetune or all; several with commas.",
            "(default: linear,knn)",
            "METHODS",
        ),
    ] = "linear,knn",
    split: Annotated[
        str | None, option("Evaluate on val or test.", "(default: val)", "SPLIT")
    ] = None,
    k: Annotated[
        int | None,
        option("Neighbors of kNN.", "(default: chosen on training images)", "N"),
    ] = None,
    shots: Annotated[
        str | None,
        option(
            "Images per class of few-shot; several with commas.",
            "(default: 1,5,10)",
            "N",
        ),
    ] = None,
    draws: Annotated[
        int,
        option("Few-shot runs, each with other images.", "(default: 10)", "N"),
    ] = 10,
    examples: Annotated[
        int, option("Images to fine-tune on.", "(default: 1000)", "N")
    ] = 1000,
    epochs: Annotated[
        int, option("Epochs of the fine-tuning.", "(default: 40)", "N")
    ] = 40,
    train_images: Annotated[
        int | None,
        option("Images to train on, drawn at random.", "(default: all)", "N"),
    ] = None,
    val_images: Annotated[
        int | None,
        option("Images to evaluate on, drawn at random.", "(default: all)", "N"),
    ] = None,
    seed: Annotated[int, option("Seed of all draws.", "(default: 0)", "N")] = 0,
    out: Annotated[
        str | None,
        option(
            "Where to write the numbers.",
            f"(default: {FILE_NAME} in the run's folder, else here)",
            "FILE.json",
        ),
    ] = None,
    batch_size: BatchSizeOption = 256,
    device: DeviceOption = None,
    precision: PrecisionOption = None,
    max_pixels: MaxPixelsOption = DEFAULT_MAX_PIXELS,
    model: ModelOption = None,
    code: CodeOption = (),
    json: JsonFlag = False,
) -> None:
    """Score a model's features on labelled images: linear, kNN, few-shot, fine-tuned.

    Examples:
      t2t probe runs/pretrained --data photos/
      t2t probe builtin --data path/to/cifar10 --train-images 5000
      t2t probe runs/pretrained --data photos/ --methods few-shot --shots 1,5
      t2t probe runs/pretrained --data photos/ --methods all --json
    """
    chosen = methods_in(methods)
    numbers = None if shots is None else shots_in(shots)
    at_least(1, "--k", k)
    at_least(1, "--draws", draws)
    at_least(1, "--examples", examples)
    at_least(1, "--epochs", epochs)
    at_least(1, "--train-images", train_images)
    at_least(1, "--val-images", val_images)
    at_least(1, "--batch-size", batch_size)
    at_least(0, "--seed", seed)
    check_max_pixels(max_pixels)
    if out is not None and not out.lower().endswith(".json"):
        raise UserError(f"--out {out} must end in .json.")
    run_code(code)

    from t2t.probing.images import weights_folder
    from t2t.probing.probe import probe as score
    from t2t.screen import print_report, show_progress
    from t2t.training.run_files import write_json

    folder = weights_folder(weights) or Path()
    file = folder / FILE_NAME if out is None else Path(out).expanduser()
    check_writable("--out", file)
    if "finetune" in chosen:
        runs = weights_folder(weights) or Path("runs")
        warn(f"Fine-tuning comes last and takes longest; its log will be in {runs}.")
    with show_progress("extracting features") as progress:
        report = score(
            weights,
            data=data,
            labels=labels,
            label_columns=label_columns,
            label_pattern=label_pattern,
            methods=chosen,
            split=split,
            k=k,
            shots=numbers,
            draws=draws,
            examples=examples,
            epochs=epochs,
            train_images=train_images,
            val_images=val_images,
            seed=seed,
            model=model,
            batch_size=batch_size,
            device=device,
            precision=precision,
            max_pixels=max_pixels,
            progress=progress,
        )
    warn(*report.notes)
    warn_skipped(report.damaged)
    write_json(file, report.as_json())
    print_report(report, as_json=json)
    warn(f"Numbers: {file}")


def methods_in(text: str) -> tuple[str, ...]:
    """The methods of a list with commas, in their usual order."""
    words = [word.strip().lower().replace("_", "-") for word in text.split(",")]
    for word in words:
        if word not in (*METHODS, "all"):
            raise UserError(
                f"--methods {word} is not known.{suggest(word, (*METHODS, 'all'))}"
            )
    return tuple(each for each in METHODS if each in words or "all" in words)


def shots_in(text: str) -> tuple[int, ...]:
    """The numbers of a list with commas."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        raise UserError(f"--shots {text} must be whole numbers, such as 1,5,10.")
    return tuple(at_least(1, "--shots", int(word)) for word in words)
