"""`t2t predict`: classify images."""

import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
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
from t2t.data.decoding.headers import DEFAULT_MAX_PIXELS
from t2t.errors import UserError, on_one_line

if TYPE_CHECKING:
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
            "(default: 5; with several labels an image, those above --threshold)",
            "N",
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        option(
            "Probability from which a class is a label, where a model predicts several "
            "labels an image.",
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
    if top is not None:
        at_least(1, "--top", top)
    if threshold is not None and not 0 <= threshold <= 1:
        raise UserError(f"--threshold {threshold:g} must be a probability from 0 to 1.")
    if None not in (top, threshold):
        raise UserError("--top and --threshold exclude each other; give one of them.")
    at_least(1, "--batch-size", batch_size)
    check_max_pixels(max_pixels)
    if json and csv:
        raise UserError("--json and --csv exclude each other; give one of them.")
    check_picture(picture)
    chosen_weights, images = split_inputs(inputs)
    if not images:
        raise UserError(no_images(inputs))
    for run in filter(is_run, images):
        raise UserError(
            f"{run} is a run, not images: give it once, before the images, as in "
            f"t2t predict {shlex.quote(run)} IMAGE..."
        )

    run_code(code)

    from t2t.screen import print_page
    from t2t.serving.prediction import THRESHOLD, Prediction
    from t2t.serving.printing import prediction_table, write_csv, write_json_lines

    predictor: AnyPredictor
    threads: AbstractContextManager[None]
    if is_onnx(chosen_weights):
        check_onnx_options(chosen_weights, model, device, picture)
        predictor, threads = open_onnx(chosen_weights, max_pixels), nullcontext()
    else:
        is_given = len(images) < len(inputs)
        predictor, threads = open_weights(
            chosen_weights, model, device, max_pixels, is_given
        )
    if threshold is not None and not predictor.is_multilabel:
        raise UserError(
            f"--threshold is for models that predict several labels an image, and "
            f"{chosen_weights} predicts one: leave it out, or use --top."
        )
    predictor.threshold = THRESHOLD if threshold is None else threshold
    # File names may be any bytes; programs get them unchanged.
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    if isinstance(sys.stdout, TextIOWrapper) and (json or csv):
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    results = predictor.predict_named(images, sys.stdin, top, batch_size)
    if json:
        results = write_json_lines(results, sys.stdout)
    elif csv:
        results = write_csv(results, sys.stdout)
    printed: list[Prediction] = []
    drawn: list[Prediction] = []
    num_predicted = num_failed = 0
    with threads:
        for result in results:
            if isinstance(result, Prediction):
                num_predicted += 1
                if len(drawn) < MAX_DRAWN:
                    drawn.append(result)
                if not json and not csv:  # else it is written already
                    printed.append(result)
            else:
                num_failed += 1
                warn(f"{on_one_line(result.name)} was skipped: {result.reason}.")
    if not num_predicted and not num_failed:
        raise UserError("The list on standard input is empty; give one path per line.")
    if not num_predicted:
        raise UserError("No image could be read.")
    if printed:
        print_page(lambda width: prediction_table(printed))
    if picture is not None:
        warn(
            f"Picture: {draw_predictions(cast('Predictor', predictor), drawn, picture)}"
        )
        if num_predicted > len(drawn):
            warn(f"It shows the first {len(drawn)} of {num_predicted:,} images.")
    if num_failed:
        raise SystemExit(1)


def open_weights(
    weights: str,
    model: str | None,
    device: str | None,
    max_pixels: int,
    is_given: bool,
) -> "tuple[Predictor, AbstractContextManager[None]]":
    """A predictor on PyTorch, and a context that sets its number of threads."""
    from t2t.models.trained import load_trained
    from t2t.serving.predictor import Predictor
    from t2t.training.distributed import find_device
    from t2t.training.threads import use_free_cores

    chosen_device = find_device(device)
    trained = load_trained(weights, model=model)
    if not is_given:
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
    path: str, model: str | None, device: str | None, picture: str | None
) -> None:
    """Raises an error for options that need PyTorch."""
    if picture is not None:
        raise UserError(
            f"--picture needs the model's layers, and {path} is a graph: give "
            "the weights that it was exported from."
        )
    if model is not None:
        raise UserError(f"--model {model} is not needed: {path} names its model.")
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
    from t2t.analysis.attention_rollout import explain
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
                    explanation=explain(predictor.model, image, best.index),
                )
            )
    trained = predictor.trained
    title = f"Predictions of {trained.name} ({trained.path})"
    return draw_explanations(explained, path, title)


def split_inputs(
    inputs: tuple[str, ...],
) -> tuple[str, tuple[str, ...]]:
    """The weights, which are the first input unless it names images; the images."""
    if not inputs:
        return "", ()
    if names_images(inputs[0]):
        return "builtin", inputs
    return inputs[0], inputs[1:]


def no_images(inputs: tuple[str, ...]) -> str:
    """An error message for a command line without images."""
    from t2t.data.image_files import is_image_name, is_url

    advice = "give files, folders, or - for a list."
    if not inputs:
        return f"No images are given; {advice}"
    first = inputs[0]
    if is_url(first) and is_image_name(first):
        return f"Images are not read from URLs: download {first} first."
    if is_url(first) or first == "builtin":
        return f"No images are given beside {first}; {advice}"
    if not Path(first).expanduser().exists():
        return f"There is no file or folder {first}; {advice}"
    return f"No images are given, and {first} holds none; {advice}"


def names_images(word: str) -> bool:
    """Whether a word names images: `-`, a file, or a folder that is not a run."""
    from t2t.data.image_files import (
        is_image_name,
        is_unread_name,
        is_url,
        permitted,
        walk,
    )

    path = Path(word).expanduser()
    if path.is_dir():
        if is_run(word):
            return False
        with permitted():
            return next(walk(str(path)), None) is not None
    is_remote = is_url(word) or word.startswith("hf-hub:")
    is_image = is_image_name(word) or is_unread_name(word)
    return word == "-" or (is_image and not is_remote)


def is_run(word: str) -> bool:
    """Whether a word is a folder with a model or the recipe of one in it.

    False for a folder that may not be read.
    """
    path = os.path.expanduser(word)
    files = os.listdir(path) if os.path.isdir(path) and os.access(path, os.R_OK) else []
    return any(f == "recipe.json" or f.endswith(".safetensors") for f in files)
