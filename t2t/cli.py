"""The verbs of the command line, one short function each.

A verb is a function in `VERBS`: its signature is the options, its docstring the help.
Nothing heavy is imported before the words are understood.
"""

import ast
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import tyro
from tyro.conf import (
    DisallowNone,
    FlagCreatePairsOff,
    Positional,
    UseAppendAction,
    arg,
    subcommand,
)

from t2t import __version__
from t2t.errors import UserError, suggest

PURPOSE = """Train vision transformers from scratch on the images you have.

t2t VERB --help explains a verb by examples; t2t --version tells the version."""


def option(help: str, default: str = "", metavar: str | None = None) -> Any:
    """What the help says of an option; its default only where a word is given."""
    return arg(help=help, help_behavior_hint=default, metavar=metavar)


JsonFlag = Annotated[bool, option("Print JSON, for programs.")]


def models(
    filter: Annotated[
        Positional[str],
        option("Part of a name, or a pattern: '14', 't2t*'.", metavar="FILTER"),
    ] = "",
    *,
    json: JsonFlag = False,
) -> None:
    """List the models by name, with their costs and the published figures.

    Examples:
      t2t models
      t2t models 't2t*distilled'
      t2t models 14 --json
    """
    from t2t.screen import find_models, model_rows, model_table, say, say_json

    found = find_models(filter)
    if json:
        say_json(model_rows(found))
    else:
        say(lambda width: model_table(found, width))


def show(
    name: Annotated[
        Positional[str],
        option("A name of `t2t models`, or any of timm's.", metavar="NAME"),
    ],
    *,
    image_size: Annotated[
        str | None,
        option(
            "Pixels, such as 384 or 192x256.",
            "(default: the model's)",
            "N|HEIGHTxWIDTH",
        ),
    ] = None,
    num_classes: Annotated[
        int | None, option("Outputs of the head.", "(default: the model's)", "N")
    ] = None,
    in_channels: Annotated[
        int, option("Channels of the images.", "(default: 3)", "N")
    ] = 3,
    set: Annotated[
        UseAppendAction[tuple[str, ...]],
        option("Any other choice of the model.", "(repeatable)", "CHOICE=VALUE"),
    ] = (),
    depth: Annotated[
        int | None,
        option("Levels of parts to show.", "(default: 3, or 2 for timm's)", "N"),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Show a model's parts and tokens, and what one image costs in it.

    Examples:
      t2t show t2t_vit_14
      t2t show t2t_vit_14 --image-size 192x256 --num-classes 10
      t2t show t2t_vit_14 --set positions=relative --set mixer=ghost
      t2t show resnet50 --depth 1
    """
    choices = parse_choices(set)
    if image_size is not None:
        choices["image_size"] = parse_size(image_size)
    if num_classes is not None:
        choices["num_classes"] = at_least(0, "--num-classes", num_classes)
    if in_channels != 3:
        choices["in_channels"] = at_least(1, "--in-channels", in_channels)

    from t2t.analysis.summary import describe
    from t2t.screen import say, say_json

    if depth is not None:
        at_least(0, "--depth", depth)
    page = describe(name, choices)
    if json:
        say_json(page.as_json())
    else:
        say(lambda width: page.render(depth))


Overrides = Annotated[
    UseAppendAction[tuple[str, ...]],
    option("Any field of the recipe.", "(repeatable)", "FIELD=VALUE"),
]


def recipes(
    filter: Annotated[
        Positional[str], option("Part of a name: 'cifar', 't2t_vit_14'.", "", "FILTER")
    ] = "",
    *,
    json: JsonFlag = False,
) -> None:
    """List the recipes: named runs, with their model, epochs and data.

    Examples:
      t2t recipes
      t2t recipes cifar --json
    """
    from t2t.recipes import about, all_recipes
    from t2t.screen import recipe_table, say, say_json

    found = {name: make for name, make in all_recipes().items() if filter in name}
    if not found:
        raise UserError(
            f"No recipe has {filter!r} in its name.{suggest(filter, all_recipes())}"
        )
    rows = [(make(), about(make)) for make in found.values()]
    if json:
        from t2t.config import to_json

        say_json([to_json(recipe) for recipe, _ in rows])
    else:
        say(lambda width: recipe_table(rows, width))


def train(
    recipe: Annotated[
        Positional[str],
        option("A name of `t2t recipes`, or a recipe.json.", "", "RECIPE"),
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
    device: Annotated[
        str | None, option("cuda, mps or cpu.", "(default: the best there is)")
    ] = None,
    precision: Annotated[
        str | None, option("bf16, fp16 or fp32.", "(default: bf16 on CUDA, else fp32)")
    ] = None,
    compile: Annotated[
        bool | None, option("Compile the model.", "(default: on CUDA)")
    ] = None,
    micro_batch: Annotated[
        int | None,
        option("Images a device holds at once, where memory is short.", "", "N"),
    ] = None,
    spread: Annotated[
        str, option("With torchrun: ddp, fsdp or hybrid.", "(default: ddp)")
    ] = "ddp",
    workers: Annotated[
        int | None, option("Threads that decode images.", "(default: all cores)", "N")
    ] = None,
    checkpoint_minutes: Annotated[
        float, option("Time between checkpoints.", "(default: 5)", "N")
    ] = 5.0,
    fresh: Annotated[
        bool, option("Delete what the folder holds and start over.")
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
    from t2t.config import override

    chosen = open_recipe(recipe, data)
    words = [] if seed is None else [f"seed={seed}"]
    if epochs is not None:
        words += shorter_or_longer(chosen, epochs)
    chosen = override(chosen, [*words, *set])

    from t2t.training.loop import Machine
    from t2t.training.loop import train as start

    machine = Machine(
        device=device,
        precision=precision,  # type: ignore[arg-type]
        compile=compile,
        micro_batch=micro_batch,
        spread=spread,  # type: ignore[arg-type]
        workers=workers,
        checkpoint_minutes=checkpoint_minutes,
    )
    if dry_run:
        from t2t.training.estimate import estimate

        print(estimate(chosen, machine))
        return
    result = start(chosen, folder=folder, machine=machine, fresh=fresh)
    if result.finished and os.environ.get("RANK", "0") == "0":
        from t2t.screen import say, summary_of

        say(lambda width: summary_of(result.folder, result.summary))


def shorter_or_longer(recipe: Any, epochs: int) -> list[str]:
    """Another number of epochs, with warm-up and floor in proportion if they must."""
    schedule = recipe.schedule
    words = [f"epochs={epochs}"]
    if schedule.warmup_epochs + schedule.floor_epochs > epochs:
        for name in ("warmup_epochs", "floor_epochs"):
            share = getattr(schedule, name) * epochs / recipe.epochs
            words.append(f"schedule.{name}={share}")
    return words


def open_recipe(name: str, data: str | None) -> Any:
    """A recipe by its name or from a file, with the data it is to be trained on."""
    from dataclasses import replace
    from pathlib import Path

    from t2t.recipes import find_recipe

    if name.endswith(".json") or Path(name, "recipe.json").exists():
        from t2t.training.folder import read_recipe

        path = Path(name)
        chosen = read_recipe(path.parent if path.suffix == ".json" else path)
    elif name == "digits" and data not in (None, "digits"):
        from t2t.recipes.own import for_images

        chosen = for_images(data)
    else:
        chosen = find_recipe(name)
    return chosen if data is None else replace(chosen, data=data)


def pack(
    source: Annotated[Positional[str], option("Any data source.", "", "SOURCE")],
    destination: Annotated[Positional[str], option("A new folder.", "", "DEST")],
    *,
    short_side: Annotated[
        int, option("Larger images are shrunk to this; 0 keeps all.", "", "PIXELS")
    ] = 256,
    quality: Annotated[int, option("JPEG quality of shrunk images.", "", "N")] = 90,
    shard_size: Annotated[int, option("Images in a shard.", "", "N")] = 4096,
    workers: Annotated[
        int | None, option("Threads.", "(default: all cores)", "N")
    ] = None,
) -> None:
    """Shrink and pack any data into tar shards that are fast to read.

    Examples:
      t2t pack path/to/imagenet packed/ --short-side 256
      t2t pack photos/ packed/
    """
    from t2t.data.pack import pack as start
    from t2t.screen import counting, say

    with counting("packing") as progress:
        done = start(
            source,
            destination,
            short_side=short_side or None,
            quality=quality,
            shard_size=shard_size,
            num_workers=workers,
            progress=progress,
        )
    for name in done.skipped:
        print(f"Left out, since it is damaged: {name}")
    say(
        lambda width: (
            f"{done.num_images:,} images in {done.num_shards} shards: "
            f"{done.bytes_before / 1e6:,.1f} MB → {done.bytes_after / 1e6:,.1f} MB\n"
            f"Train on them: t2t train --data {done.folder}"
        )
    )


ModelOfFile = Annotated[
    str | None,
    option("What a file of weights is, where it does not say.", "", "NAME"),
]


def eval(
    weights: Annotated[
        Positional[str],
        option("A run folder, weights, a URL or hf-hub:owner/name.", "", "RUN|WEIGHTS"),
    ],
    *,
    data: Annotated[
        str | None,
        option("Images to judge by.", "(default: what it was trained on)", "SOURCE"),
    ] = None,
    split: Annotated[
        str | None,
        option("val, test, train or all.", "(default: val, else all)", "SPLIT"),
    ] = None,
    batch_size: Annotated[
        int, option("Images computed at once.", "(default: 256)", "N")
    ] = 256,
    device: Annotated[
        str | None, option("cuda, mps or cpu.", "(default: the best there is)")
    ] = None,
    precision: Annotated[
        str | None, option("bf16, fp16 or fp32.", "(default: bf16 on CUDA, else fp32)")
    ] = None,
    real: Annotated[
        bool, option("Also by ImageNet's reassessed (ReaL) labels.")
    ] = False,
    model: ModelOfFile = None,
    picture: Annotated[
        str | None, option("Draw what is taken for what, as a PNG.", "", "PATH")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Judge a model by images: accuracy, loss, speed, and every class.

    Examples:
      t2t eval runs/digits.t2t_vit
      t2t eval runs/mine --data photos/ --picture confusion.png
      t2t eval 81.5_T2T_ViT_14.pth.tar --data path/to/imagenet --real
      t2t eval runs/mine --json
    """
    at_least(1, "--batch-size", batch_size)
    if picture is not None and not picture.lower().endswith((".png", ".pdf", ".svg")):
        raise UserError(f"--picture {picture} must end in .png, .pdf or .svg.")

    from t2t.screen import counting, say, say_json
    from t2t.training.judging import judge

    with counting("evaluating") as progress:
        report = judge(
            weights,
            data=data,
            split=split,
            batch_size=batch_size,
            device=device,
            precision=precision,
            model=model,
            real=real,
            progress=progress,
        )
    if report is None:  # another process of torchrun tells it
        return
    warn(
        *report.notes, *(f"Left out, since it is damaged: {n}" for n in report.damaged)
    )
    if json:
        say_json(report.as_json())
    else:
        say(lambda width: report.render())
    if picture is not None:
        from t2t.analysis.pictures import draw_confusion

        names = report.trained.readable_names
        file = draw_confusion(report.score.confusion, names, picture, report.data)
        warn(f"Picture: {file}")


def predict(
    weights: Annotated[
        Positional[str],
        option("A run folder, weights, a URL or hf-hub:owner/name.", "", "WEIGHTS"),
    ],
    images: Annotated[
        Positional[tuple[str, ...]],
        option("Files, folders, or - for a list on standard input.", "", "IMAGE..."),
    ],
    *,
    top: Annotated[int, option("Guesses to an image.", "(default: 5)", "N")] = 5,
    json: Annotated[bool, option("Print a line of JSON for each image.")] = False,
    csv: Annotated[bool, option("Print CSV, a row for each guess.")] = False,
    batch_size: Annotated[
        int, option("Images computed at once.", "(default: 32)", "N")
    ] = 32,
    model: ModelOfFile = None,
    device: Annotated[
        str | None, option("cuda, mps or cpu.", "(default: the best there is)")
    ] = None,
) -> None:
    """Tell what a model sees in images.

    Examples:
      t2t predict runs/mine cat.jpg
      t2t predict runs/mine photos/ --top 1 --csv > seen.csv
      find . -name '*.jpg' | t2t predict runs/mine - --json
    """
    at_least(1, "--top", top)
    at_least(1, "--batch-size", batch_size)
    if json and csv:
        raise UserError("--json and --csv are two forms of the same; give one of them.")
    if not images:
        raise UserError("No images are named; give files, folders, or - for a list.")

    from t2t.models.trained import load_trained
    from t2t.screen import say
    from t2t.serving.predictor import Prediction, Predictor
    from t2t.serving.printing import prediction_table, write_csv, write_json_lines
    from t2t.training.parallel import find_device

    chosen = find_device(device)
    predictor = Predictor(load_trained(weights, model=model), chosen)
    warn(*predictor.trained.notes)
    outcomes = predictor.predict_named(images, sys.stdin, top, batch_size)
    if json:
        outcomes = write_json_lines(outcomes, sys.stdout)
    elif csv:
        outcomes = write_csv(outcomes, sys.stdout)
    predictions: list[Prediction] = []
    num_failed = 0
    for outcome in outcomes:
        if isinstance(outcome, Prediction):
            predictions.append(outcome)
        else:
            num_failed += 1
            warn(f"{outcome.name} was left out: {outcome.reason}.")
    if not predictions:
        raise UserError("No image could be read, so there is nothing to tell.")
    if not json and not csv:
        say(lambda width: prediction_table(predictions))
    if num_failed:
        raise SystemExit(1)


def warn(*sentences: str) -> None:
    """Says something beside the result."""
    for sentence in sentences:
        print(f"t2t: {sentence}", file=sys.stderr)


KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    float | None: "a number or none",
    tuple[int, int]: "two whole numbers, such as 224,224",
    tuple[int, ...]: "whole numbers, such as 3,6,6,4",
    tuple[tuple[int, int, int], ...]: "triples, such as (7,4,2),(3,2,1),(3,2,1)",
}
"""The kinds of values that choices take, in words."""

VERBS: dict[str, Callable[..., None]] = {
    "models": models,
    "show": show,
    "recipes": recipes,
    "train": train,
    "pack": pack,
    "eval": eval,
    "predict": predict,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        run(words)
        # A reader that has gone shows only when the last words are sent.
        sys.stdout.flush()
    except UserError as error:
        print(f"t2t: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except SystemExit as leaving:
        code = leaving.code
        return code if isinstance(code, int) else int(code is not None)
    return 0


def run(words: list[str]) -> None:
    """Calls the verb that the first word names with what the others say."""
    if words[:1] == ["--version"]:
        print(f"t2t {__version__}")
    elif not words or words[0] in ("-h", "--help", "help"):
        print_verbs()
    elif words[0] in VERBS:
        verb = VERBS[words[0]]
        tyro.cli(
            verb,
            prog=f"t2t {words[0]}",
            description=inspect.getdoc(verb),
            args=words[1:],
            config=(FlagCreatePairsOff, DisallowNone),
        )
    else:
        raise UserError(f"There is no verb {words[0]!r}.{suggest(words[0], VERBS)}")


def print_verbs() -> None:
    """Prints the verbs, each with its first sentence."""

    def without_options() -> None:
        """Stands for a verb: its options need not be read to list it."""

    verbs = {
        name: Annotated[
            Any,
            subcommand(
                name=name,
                description=(inspect.getdoc(verb) or "").partition("\n")[0],
                constructor=without_options,
            ),
        ]
        for name, verb in VERBS.items()
    }
    choice: Any = Union[tuple(verbs.values())]  # noqa: UP007
    tyro.cli(choice, prog="t2t", description=PURPOSE, args=["--help"])


def at_least(least: int, option: str, number: int) -> int:
    """The number given for an option, unless it is too small."""
    if number < least:
        raise UserError(f"{option} {number} is too small: give {least} or more.")
    return number


def parse_size(text: str) -> tuple[int, int]:
    """Height and width from `224` or `192x256`."""
    numbers = text.lower().replace("×", "x").split("x")
    if not all(number.strip().isdecimal() for number in numbers) or len(numbers) > 2:
        raise UserError(
            f"--image-size {text} is not a size; write 224 or, height first, 192x256."
        )
    return int(numbers[0]), int(numbers[-1])


def parse_choices(settings: Iterable[str]) -> dict[str, Any]:
    """Choices given as NAME=VALUE, each value of the type that the choice has."""
    from t2t.models.config import ModelConfig

    kinds = get_type_hints(ModelConfig)
    choices: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise UserError(f"--set {setting} gives no value; write {name}=VALUE.")
        # A name that no model has is refused, with a suggestion, where it is used.
        choices[name] = parse_value(name, text.strip(), kinds.get(name, str))
    return choices


def parse_value(name: str, text: str, kind: Any) -> Any:
    """One value; numbers, truths and tuples are written as in Python."""
    if kind is str:
        return text
    try:
        value = ast.literal_eval(
            text.capitalize() if text.lower() in ("true", "false", "none") else text
        )
    except (ValueError, SyntaxError):
        value = text
    if type(value) is int and not fits(value, kind):
        value = float(value)
    if not fits(value, kind):
        raise UserError(f"--set {name}={text} will not do: {name} takes {KINDS[kind]}.")
    if kind is int:
        at_least(0 if name in ("num_classes", "growth") else 1, f"--set {name}", value)
    return value


def fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a kind: a type, one of several, or tuples of them."""
    inner = get_args(kind)
    if get_origin(kind) is not tuple:
        return type(value) in (inner or (kind,))
    if not isinstance(value, tuple):
        return False
    if inner[-1] is Ellipsis:
        return all(fits(element, inner[0]) for element in value)
    return len(value) == len(inner) and all(map(fits, value, inner))
