"""Trained models at work: judged by images, and asked what is in them."""

import os
import shlex
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from t2t.commands.options import (
    DeviceChoice,
    JsonFlag,
    MaxPixels,
    PrecisionChoice,
    at_least,
    check_max_pixels,
    check_picture,
    option,
    warn,
)
from t2t.data.decoding.headers import DEFAULT_MAX_PIXELS
from t2t.errors import UserError, on_one_line

ModelOfFile = Annotated[
    str | None,
    option("What a file of weights is, where it does not say.", "", "NAME"),
]

MOST_DRAWN = 8
"""Images in a picture of what is seen."""

NamedWeights = Annotated[
    str | None,
    option("What to use, by name: builtin is the one that ships.", "", "RUN|WEIGHTS"),
]


def eval(
    run: Annotated[
        Positional[str],
        option(
            "A run folder, weights, a URL, hf-hub:owner/name, or builtin.",
            "",
            "[RUN|WEIGHTS]",
        ),
    ] = "",
    *,
    weights: NamedWeights = None,
    data: Annotated[
        str | None,
        option(
            "Images to judge by.", "(default: the run's validation images)", "SOURCE"
        ),
    ] = None,
    split: Annotated[
        str | None,
        option("val, test, train or all.", "(default: val, else all)", "SPLIT"),
    ] = None,
    batch_size: Annotated[
        int, option("Images computed at once.", "(default: 256)", "N")
    ] = 256,
    device: DeviceChoice = None,
    precision: PrecisionChoice = None,
    max_pixels: MaxPixels = DEFAULT_MAX_PIXELS,
    real: Annotated[
        bool, option("Also by ImageNet's reassessed (ReaL) labels.")
    ] = False,
    model: ModelOfFile = None,
    picture: Annotated[
        str | None,
        option("Draw what is taken for what: a .png, .pdf or .svg.", "", "PATH"),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Judge a model by images: accuracy, loss, speed, and every class.

    Examples:
      t2t eval runs/digits.t2t_vit
      t2t eval runs/mine --data photos/ --picture confusion.png
      t2t eval 81.5_T2T_ViT_14.pth.tar --data path/to/imagenet --real
      t2t eval --weights builtin --data path/to/cifar10
      t2t eval runs/mine --json
    """
    if bool(run) == bool(weights):
        raise UserError(
            "Name one run or file of weights: t2t eval runs/mine, or "
            "t2t eval --weights builtin."
        )
    at_least(1, "--batch-size", batch_size)
    check_max_pixels(max_pixels)
    check_picture(picture)

    from t2t.screen import counting, info, say_json
    from t2t.training.evaluation.evaluate_model import evaluate_model

    with counting("evaluating") as progress:
        report = evaluate_model(
            weights or run,
            data=data,
            split=split,
            batch_size=batch_size,
            device=device,
            precision=precision,
            model=model,
            real=real,
            max_pixels=max_pixels,
            progress=progress,
        )
    if report is None:  # another process of torchrun tells it
        return
    warn(*report.notes)
    warn(*(f"Left out, since it is damaged: {on_one_line(n)}" for n in report.damaged))
    if json:
        say_json(report.as_json())
    else:
        info(lambda width: report.render())
    if picture is not None:
        from t2t.analysis.pictures import draw_confusion

        names = report.trained.readable_names
        file = draw_confusion(report.score.confusion, names, picture, report.data)
        warn(f"Picture: {file}")


def predict(
    words: Annotated[
        Positional[tuple[str, ...]],
        option(
            "A run folder, weights, a URL or hf-hub:owner/name (without one, the model "
            "that ships); then files, folders, or - for a list on standard input.",
            "",
            "[WEIGHTS] IMAGE...",
        ),
    ],
    *,
    weights: NamedWeights = None,
    top: Annotated[int, option("Guesses to an image.", "(default: 5)", "N")] = 5,
    json: Annotated[bool, option("Print a line of JSON for each image.")] = False,
    csv: Annotated[bool, option("Print CSV, a row for each guess.")] = False,
    batch_size: Annotated[
        int, option("Images computed at once.", "(default: 32)", "N")
    ] = 32,
    picture: Annotated[
        str | None,
        option(
            "Draw the tokens of the first few images, where the model looks and what "
            "its guess needs: a .png, .pdf or .svg.",
            "",
            "PATH",
        ),
    ] = None,
    model: ModelOfFile = None,
    device: DeviceChoice = None,
    max_pixels: MaxPixels = DEFAULT_MAX_PIXELS,
) -> None:
    """Tell what a model sees in images.

    Examples:
      t2t predict cat.jpg
      t2t predict runs/mine cat.jpg
      t2t predict cat.jpg --picture seen.png
      t2t predict runs/mine photos/ --top 1 --csv > seen.csv
      find . -name '*.jpg' | t2t predict runs/mine - --json
    """
    at_least(1, "--top", top)
    at_least(1, "--batch-size", batch_size)
    check_max_pixels(max_pixels)
    if json and csv:
        raise UserError("--json and --csv are two forms of the same; give one of them.")
    check_picture(picture)
    chosen_weights, images = weights_and_images(weights, words)
    if not images:
        raise UserError(no_images(words))
    for run in filter(is_run, images):
        raise UserError(
            f"{run} is a run, not images: name it before them, once, as in "
            f"t2t predict {shlex.quote(run)} IMAGE..."
        )

    from t2t.models.trained import load_trained
    from t2t.screen import info
    from t2t.serving.predictor import Prediction, Predictor
    from t2t.serving.printing import prediction_table, write_csv, write_json_lines
    from t2t.training.distributed import find_device
    from t2t.training.threads import use_free_cores

    chosen = find_device(device)
    trained = load_trained(chosen_weights, model=model)
    if weights is None and len(images) == len(words):
        warn(
            f"No weights are named, so this is the built-in {trained.name}, trained on "
            f"{trained.data}: it knows {len(trained.class_names)} classes."
        )
    predictor = Predictor(trained, chosen, max_pixels)
    warn(*trained.notes)
    # Names are bytes, of whatever encoding, and programs are told them as they are.
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    if isinstance(sys.stdout, TextIOWrapper) and (json or csv):
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    outcomes = predictor.predict_named(images, sys.stdin, top, batch_size)
    if json:
        outcomes = write_json_lines(outcomes, sys.stdout)
    elif csv:
        outcomes = write_csv(outcomes, sys.stdout)
    predictions: list[Prediction] = []
    drawn: list[Prediction] = []
    num_seen = num_failed = 0
    with use_free_cores(chosen):
        for outcome in outcomes:
            if isinstance(outcome, Prediction):
                num_seen += 1
                if len(drawn) < MOST_DRAWN:
                    drawn.append(outcome)
                if not json and not csv:  # else they are printed already
                    predictions.append(outcome)
            else:
                num_failed += 1
                name = on_one_line(outcome.name)
                warn(f"{name} was skipped: {outcome.reason}.")
    if not num_seen and not num_failed:
        raise UserError("The list on standard input is empty; give paths, one a line.")
    if not num_seen:
        raise UserError("No image could be read, so there is nothing to tell.")
    if predictions:
        info(lambda width: prediction_table(predictions))
    if picture is not None:
        from t2t.commands.seeing import draw_seen

        warn(f"Picture: {draw_seen(predictor, drawn, picture)}")
        if num_seen > len(drawn):
            warn(f"It shows the first {len(drawn)} of {num_seen:,} images.")
    if num_failed:
        raise SystemExit(1)


def weights_and_images(
    weights: str | None, words: tuple[str, ...]
) -> tuple[str, tuple[str, ...]]:
    """What to predict with and what to look at; without weights, the model that ships.

    The first word is weights unless it names images.
    """
    if weights is not None:
        return weights, words
    if not words:
        return "", ()
    if names_images(words[0]):
        return "builtin", words
    return words[0], words[1:]


def no_images(words: tuple[str, ...]) -> str:
    """Why there is nothing to look at."""
    from t2t.data.sources.folder import is_image_name
    from t2t.data.sources.storage import is_url

    advice = "give files, folders, or - for a list."
    if not words:
        return f"No images are named; {advice}"
    if is_url(words[0]):
        if is_image_name(words[0]):
            return f"Images are not read from URLs: download {words[0]} first."
        return f"No images are named beside {words[0]}; {advice}"
    if words[0] == "builtin":
        return f"No images are named beside builtin; {advice}"
    path = Path(words[0]).expanduser()
    if not path.exists():
        return f"There is no file or folder {words[0]} to look at; {advice}"
    return f"No images are named beside {words[0]}, which holds none; {advice}"


def names_images(word: str) -> bool:
    """Whether a word stands for images: a list, a file, or a folder that is no run."""

    from t2t.data.sources.folder import is_image_name, is_unread_name, walk
    from t2t.data.sources.opening import permitted
    from t2t.data.sources.storage import is_url

    path = Path(word).expanduser()
    if path.is_dir():
        if is_run(word):
            return False
        with permitted():
            return next(walk(str(path)), None) is not None
    is_address = is_url(word) or word.startswith("hf-hub:")
    is_called_so = is_image_name(word) or is_unread_name(word)
    return word == "-" or (is_called_so and not is_address)


def is_run(word: str) -> bool:
    """Whether a word is a folder with a trained model in it, or one that began to be.

    A folder that may not be read is none.
    """
    path = os.path.expanduser(word)
    files = os.listdir(path) if os.path.isdir(path) and os.access(path, os.R_OK) else []
    return any(f == "recipe.json" or f.endswith(".safetensors") for f in files)
