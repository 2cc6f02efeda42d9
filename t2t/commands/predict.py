"""`t2t predict`: classify images."""

import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

from tyro.conf import Positional

from t2t.commands.options import (
    WEIGHTS,
    CodeOption,
    DeviceOption,
    MaxPixelsOption,
    ModelOption,
    at_least,
    check_max_pixels,
    check_picture,
    option,
    run_code,
    warn,
)
from t2t.commands.weights_and_images import EMPTY_LIST, check_images, split_inputs
from t2t.data.decoding.headers import DEFAULT_MAX_PIXELS
from t2t.errors import UserError, on_one_line

if TYPE_CHECKING:
    from t2t.data.decoding.damage import DamagedImage
    from t2t.serving.onnx_predictor import OnnxPredictor
    from t2t.serving.prediction import Prediction
    from t2t.serving.predictor import Predictor

    AnyPredictor = OnnxPredictor | Predictor

MAX_DRAWN = 8
"""Images in a picture."""


def predict(
    inputs: Annotated[
        Positional[tuple[str, ...]],
        option(
            f"{WEIGHTS}, or a .onnx file (default: builtin); then image files, "
            "folders, or - for paths on standard input.",
            "",
            "[WEIGHTS] IMAGE...",
        ),
    ],
    *,
    top: Annotated[
        int | None,
        option(
            "Classes per image.",
            "(default: 5; multi-label models: those above --threshold)",
            "N",
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        option(
            "Probability from which a multi-label model predicts a class.",
            "(default: 0.5)",
            "P",
        ),
    ] = None,
    json: Annotated[bool, option("Print a line of JSON per image.")] = False,
    csv: Annotated[bool, option("Print CSV, a row per predicted class.")] = False,
    batch_size: Annotated[
        int, option("Images per forward pass.", "(default: 32)", "N")
    ] = 32,
    picture: Annotated[
        str | None,
        option(
            "Draw tokens, attention and occlusion maps of the first "
            f"{MAX_DRAWN} images: a .png, .pdf or .svg.",
            "",
            "PATH",
        ),
    ] = None,
    model: ModelOption = None,
    code: CodeOption = (),
    device: DeviceOption = None,
    max_pixels: MaxPixelsOption = DEFAULT_MAX_PIXELS,
) -> None:
    """Classify images.

    Examples:
      t2t predict cat.jpg
      t2t predict runs/own cat.jpg
      t2t predict model.onnx cat.jpg
      t2t predict cat.jpg --picture explained.png
      t2t predict runs/own photos/ --top 1 --csv > classes.csv
      find . -name '*.jpg' | t2t predict runs/own - --json
    """
    check_numbers(top, threshold, batch_size)
    check_max_pixels(max_pixels)
    if json and csv:
        raise UserError("--json and --csv are mutually exclusive; give one.")
    check_picture(picture)
    weights, images = split_inputs(inputs)
    check_images(inputs, images)

    if is_onnx(weights):
        check_onnx_options(weights, model, device, picture, code)
    run_code(code)

    from t2t.screen import print_page
    from t2t.serving.prediction import THRESHOLD
    from t2t.serving.printing import prediction_table, write_csv, write_json_lines

    predictor: AnyPredictor
    threads: AbstractContextManager[None]
    if is_onnx(weights):
        predictor, threads = open_onnx(weights, max_pixels), nullcontext()
    else:
        has_weights = len(images) < len(inputs)
        predictor, threads = open_weights(
            weights, model, device, max_pixels, has_weights
        )
    if threshold is not None and not predictor.is_multilabel:
        raise UserError(
            f"--threshold is for multi-label models, and {weights} predicts one label "
            "per image: leave it out, or use --top."
        )
    predictor.threshold = THRESHOLD if threshold is None else threshold
    # File names may be any bytes; programs get them unchanged.
    if isinstance(sys.stdout, TextIOWrapper) and (json or csv):
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    results = predictor.predict_named(images, sys.stdin, top, batch_size)
    if json:
        results = write_json_lines(results, sys.stdout)
    elif csv:
        results = write_csv(results, sys.stdout)
    with threads:
        collected = collect(results, keeps_all=not json and not csv)
    if not collected.num_predicted and not collected.num_failed:
        raise UserError(EMPTY_LIST)
    if not collected.num_predicted:
        raise UserError("No image could be read.")
    if not json and not csv:  # else they are written already
        print_page(lambda width: prediction_table(collected.kept))
    if picture is not None:
        drawn = collected.kept[:MAX_DRAWN]
        path = draw_predictions(cast("Predictor", predictor), drawn, picture)
        warn(f"Picture: {path}")
        if (num := collected.num_predicted) > len(drawn):
            warn(f"It shows the first {len(drawn)} of {num:,} images.")
    if collected.num_failed:
        raise SystemExit(1)


def check_numbers(top: int | None, threshold: float | None, batch_size: int) -> None:
    """Raises an error for numbers out of range, or that are mutually exclusive."""
    at_least(1, "--top", top)
    if threshold is not None and not 0 <= threshold <= 1:
        raise UserError(f"--threshold {threshold:g} must be a probability from 0 to 1.")
    if None not in (top, threshold):
        raise UserError("--top and --threshold are mutually exclusive; give one.")
    at_least(1, "--batch-size", batch_size)


@dataclass
class Predicted:
    """The predictions to print or draw, and how many images could be read."""

    kept: "list[Prediction]" = field(default_factory=list)
    num_predicted: int = 0
    num_failed: int = 0


def collect(
    results: "Iterable[Prediction | DamagedImage]", keeps_all: bool
) -> Predicted:
    """All predictions, or those to draw; warns of images that cannot be read."""
    from t2t.serving.prediction import Prediction

    collected = Predicted()
    for result in results:
        if isinstance(result, Prediction):
            collected.num_predicted += 1
            if keeps_all or len(collected.kept) < MAX_DRAWN:
                collected.kept.append(result)
        else:
            collected.num_failed += 1
            warn(f"{on_one_line(result.name)} was skipped: {result.reason}.")
    return collected


def open_weights(
    weights: str,
    model: str | None,
    device: str | None,
    max_pixels: int,
    has_weights: bool,
) -> "tuple[Predictor, AbstractContextManager[None]]":
    """A predictor on PyTorch, and a context that sets its number of threads."""
    from t2t.models.trained import load_trained
    from t2t.serving.predictor import Predictor
    from t2t.training.distributed import find_device
    from t2t.training.threads import use_free_cores

    chosen_device = find_device(device)
    trained = load_trained(weights, model=model)
    if not has_weights:
        warn(
            f"No weights are given, so this is the built-in {trained.name}, trained on "
            f"{trained.data} ({len(trained.class_names)} classes)."
        )
    predictor = Predictor(trained, chosen_device, max_pixels)
    warn(*trained.notes)
    return predictor, use_free_cores(chosen_device)


def open_onnx(path: str, max_pixels: int) -> "OnnxPredictor":
    """A predictor on ONNX Runtime; PyTorch, which takes a second, is not imported."""
    from t2t.serving.onnx_predictor import OnnxPredictor

    return OnnxPredictor(path, max_pixels=max_pixels)


def is_onnx(weights: str) -> bool:
    """Whether weights are an exported ONNX file, by its name."""
    return weights.lower().endswith(".onnx")


def check_onnx_options(
    path: str,
    model: str | None,
    device: str | None,
    picture: str | None,
    code: Sequence[str],
) -> None:
    """Raises an error for options that need PyTorch."""
    if picture is not None:
        raise UserError(
            f"--picture needs the model's layers, and {path} is a graph: give "
            "the weights that it was exported from."
        )
    if model is not None:
        raise UserError(f"--model {model} is not needed: {path} names its model.")
    if code:
        raise UserError(
            f"--code {code[0]} is not needed: {path} is a whole graph; leave it out."
        )
    if device not in (None, "cpu"):
        raise UserError(
            f"--device {device}: an ONNX file runs on the CPU here; leave it out, or "
            "give the weights that it was exported from."
        )


def draw_predictions(
    predictor: "Predictor", predictions: "Sequence[Prediction]", path: str
) -> Path:
    """Draw the evidence for each prediction; reads the images again."""
    from t2t.analysis.attention_figure import ExplainedImage, draw_explanations
    from t2t.analysis.explain import explain
    from t2t.screen import show_progress

    explained = []
    with show_progress("explaining") as progress:
        for number, prediction in enumerate(predictions):
            progress(number, len(predictions))
            pixels = predictor.model_input(prediction.image)
            best = prediction.best
            image = predictor.normalised(pixels)
            explained.append(
                ExplainedImage(
                    name=Path(prediction.image).name,
                    pixels=pixels,
                    class_name=best.name,
                    probability=best.probability,
                    explanation=explain(
                        predictor.model,
                        image,
                        best.index,
                        multilabel=predictor.is_multilabel,
                    ),
                )
            )
    trained = predictor.trained
    title = f"Predictions of {trained.name} ({trained.path})"
    return draw_explanations(explained, path, title)
