"""`t2t eval`: evaluate a model."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from t2t.commands.options import (
    BatchSizeOption,
    CodeOption,
    DeviceOption,
    ImageSizeOption,
    JsonFlag,
    LabelColumnsOption,
    LabelPatternOption,
    LabelsOption,
    MaxDamagedOption,
    MaxPixelsOption,
    ModelOption,
    PrecisionOption,
    WeightsArgument,
    at_least,
    check_max_pixels,
    check_picture,
    check_single_process,
    check_writable,
    option,
    parse_size,
    run_code,
    warn,
    warn_skipped,
)
from t2t.data.decoding.damage import DEFAULT_MAX_DAMAGED, damage_limit
from t2t.data.decoding.headers import DEFAULT_MAX_PIXELS
from t2t.errors import UserError
from t2t.table_beside import OF_REPORT, table_beside

if TYPE_CHECKING:
    from t2t.models.trained import TrainedModel
    from t2t.training.evaluation.evaluate import Scoring


def eval(
    weights: WeightsArgument,
    *,
    data: Annotated[
        str | None,
        option(
            "Images to evaluate on.", "(default: the run's validation images)", "SOURCE"
        ),
    ] = None,
    labels: LabelsOption = (),
    label_columns: LabelColumnsOption = None,
    label_pattern: LabelPatternOption = None,
    split: Annotated[
        str | None,
        option("val, test, train or all.", "(default: val, else all)", "SPLIT"),
    ] = None,
    batch_size: BatchSizeOption = 256,
    device: DeviceOption = None,
    precision: PrecisionOption = None,
    max_pixels: MaxPixelsOption = DEFAULT_MAX_PIXELS,
    max_damaged: MaxDamagedOption = DEFAULT_MAX_DAMAGED,
    real: Annotated[
        bool, option("Also score on ImageNet's reassessed (ReaL) labels.")
    ] = False,
    flip: Annotated[
        bool, option("Average the probabilities of each image and its horizontal flip.")
    ] = False,
    image_size: ImageSizeOption = None,
    model: ModelOption = None,
    code: CodeOption = (),
    picture: Annotated[
        str | None,
        option("Draw the confusion matrix: a .png, .pdf or .svg.", "", "PATH"),
    ] = None,
    report: Annotated[
        str | None,
        option(
            "Write a page of the most confident mistakes, likely wrong "
            "labels, near-duplicates of training images, confused classes. A .html, "
            "and a .csv beside it that lists all.",
            "",
            "PATH",
        ),
    ] = None,
    train_images: Annotated[
        int,
        option(
            "Training images that --report reads, for wrong labels and duplicates; 0 "
            "for none.",
            "(default: 50000)",
            "N",
        ),
    ] = 50_000,
    json: JsonFlag = False,
) -> None:
    """Evaluate a model: accuracy, calibration, speed, every class, and mistakes.

    Examples:
      t2t eval runs/digits.t2t_vit
      t2t eval runs/own --data photos/ --picture confusion.png
      t2t eval runs/own --report mistakes.html
      t2t eval 81.5_T2T_ViT_14.pth.tar --data path/to/imagenet --real
      t2t eval builtin --data path/to/cifar10
      t2t eval runs/own --flip --json
    """
    at_least(1, "--batch-size", batch_size)
    check_max_pixels(max_pixels)
    damage_limit(max_damaged, 0)
    check_picture(picture)
    at_least(0, "--train-images", train_images)
    check_report(report)
    size = None if image_size is None else parse_size(image_size)
    run_code(code)

    from t2t.data.label_config import label_config
    from t2t.models.trained import load_trained
    from t2t.screen import print_json, print_page, show_progress
    from t2t.training.evaluation.evaluate_model import evaluate_model

    trained = load_trained(weights, model=model, image_size=size)
    options: dict[str, Any] = {
        "data": data,
        "label_config": label_config(labels, label_columns, label_pattern),
        "split": split,
        "batch_size": batch_size,
        "device": device,
        "precision": precision,
        "max_pixels": max_pixels,
        "max_damaged": max_damaged,
    }
    if trained.is_multilabel:
        refused = {
            "--picture": picture is not None,
            "--report": report is not None,
            "--real": real,
            "--flip": flip,
        }
        eval_multilabel(trained, options, refused, json=json)
        return
    found = None
    with show_progress("evaluating") as progress:
        evaluated = evaluate_model(
            trained,
            real=real,
            flip=flip,
            also=None if report is None else score_for_report(),
            progress=progress,
            **options,
        )
    if evaluated is None:  # another process of torchrun prints it
        return
    if report is not None:
        from t2t.error_analysis.evaluate import Evaluation

        with show_progress("training images") as progress:
            evaluation = Evaluation(evaluated, max_pixels, max_damaged)
            found = evaluation.save_report(report, train_images, progress)
    warn(*evaluated.notes)
    warn_skipped(evaluated.damaged)
    if json:
        findings = (
            {} if found is None else {"report": {"page": report, **found.as_json()}}
        )
        print_json({**evaluated.as_json(), **findings})
    else:
        print_page(lambda width: evaluated.render())
    if picture is not None:
        from t2t.analysis.confusion_figure import draw_confusion

        names = evaluated.trained.readable_names
        file = draw_confusion(evaluated.score.confusion, names, picture, evaluated.data)
        warn(f"Picture: {file}")
    if found is not None:
        warn(f"Report: {report} ({found.summary()})")


def check_report(report: str | None) -> None:
    """Raises an error if a page has another format or cannot be written."""
    if report is None:
        return
    check_single_process("t2t eval --report")
    if not report.lower().endswith((".html", ".htm")):
        raise UserError(
            f"--report {report} must end in .html (--picture draws the confusion "
            "matrix)."
        )
    path = Path(report).expanduser()
    check_writable("--report", path)
    check_writable("--report", table_beside(path, OF_REPORT))


def score_for_report() -> "Scoring":
    """The values of every image that a report needs beside its prediction."""
    from t2t.error_analysis.evaluate import score_colours

    return score_colours


def eval_multilabel(
    trained: "TrainedModel",
    options: Mapping[str, Any],
    refused: Mapping[str, bool],
    *,
    json: bool,
) -> None:
    """Evaluates a model that predicts several labels per image."""
    for option_name, is_given in refused.items():
        if is_given:
            raise UserError(
                f"{option_name} is for models that predict one label per image, and "
                f"{trained.path} predicts several: leave it out. t2t eval then prints "
                "the average precision of every class."
            )
    from t2t.screen import print_report, show_progress
    from t2t.training.evaluation.evaluate_multilabel import evaluate_multilabel

    with show_progress("evaluating") as progress:
        report = evaluate_multilabel(trained, progress=progress, **options)
    if report is None:
        return
    warn(*report.notes)
    warn_skipped(report.damaged)
    print_report(report, as_json=json)
