"""A finished run's model made small enough to ship, with a card that describes it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import t2t
from t2t.atomic import atomic_file
from t2t.errors import UserError, on_one_line
from t2t.lab.output_dir import renamed, writing_into
from t2t.models.builtin import CARD
from t2t.models.checkpoint_io.checkpoints import Checkpoint, read
from t2t.models.checkpoint_io.checksum import write_with_checksum
from t2t.models.checkpoint_io.description import Description
from t2t.training.evaluation.evaluate_model import evaluate_model
from t2t.training.evaluation.report import EvalReport
from t2t.training.logging.clock import counted
from t2t.training.recipe import Recipe
from t2t.training.run_folder import read_recipe, read_result, same_data, write_page


def ship(
    run: Path,
    into: Path,
    *,
    data: str | None = None,
    data_name: str | None = None,
    most_megabytes: float = 10.0,
    device: str | None = None,
) -> tuple[Path, EvalReport]:
    """Writes a finished run's weights at half precision beside a card, and judges them.

    The accuracies on the card are those of the file that was written. `data_name` is
    what the file and the card call the data, wherever they lie now.
    """
    result, recipe = read_result(run), read_recipe(run)
    where = data or recipe.data
    name = data_name or recipe.data
    is_own = data_name is not None or same_data(where, recipe.data)
    checkpoint = read(run)
    if checkpoint.description is None:
        raise UserError(f"{checkpoint.origin} does not describe its model.")
    file = into / f"{recipe.name}.safetensors"
    extra = {"data": name, "recipe": recipe.name}
    check_place(into, file)
    check_same(file, checkpoint.description)
    for path in unfinished(file):
        path.unlink()
    # A model that cannot be judged, or whose card cannot be written, does not ship.
    with writing_into(into), atomic_file(file) as part:
        write_half(checkpoint, part, extra, most_megabytes)
        # Of data that the run split itself, what it was not trained on.
        split = "val" if is_own else None
        report = evaluate_model(part, data=where, split=split, device=device)
        assert report is not None  # one process
        report = replace(report, data=name if is_own else where)
        page = card(recipe, result, report, part.stat().st_size, name)
        write_page(into / CARD, page)
    return file, report


def check_place(into: Path, file: Path) -> None:
    """Refuses a folder that holds anything but this model as it shipped earlier."""
    there = {path.name for path in into.iterdir()} if into.is_dir() else set()
    there -= {path.name for path in unfinished(file)}
    if there and not {CARD} <= there <= {CARD, file.name}:
        others = ", ".join(sorted(there - {CARD, file.name})[:3]) or file.name
        raise UserError(
            f"{into} holds something else ({others}) than {file.stem} as it shipped "
            "earlier; give --into a new folder."
        )


def check_same(file: Path, description: Description) -> None:
    """Refuses to write over another model: all runs on one's own data have one name."""
    if not file.exists():
        return
    there = read(file).description
    if there is None or replace(there, extra=description.extra) != description:
        raise UserError(
            f"{file.parent} holds another model of the name {file.stem}; give --into a "
            "new folder."
        )


def unfinished(file: Path) -> list[Path]:
    """What a process that was killed while it shipped a model has left of it."""
    there = file.parent.iterdir() if file.parent.is_dir() else ()
    return [path for path in there if path.name.startswith(f".{file.name}.")]


def write_half(
    checkpoint: Checkpoint, file: Path, extra: dict[str, Any], most_megabytes: float
) -> None:
    """The same weights in half the bytes, unless they do not fit the range or size."""
    halved = {name: half(name, each) for name, each in checkpoint.tensors.items()}
    num_bytes = sum(each.numel() * each.element_size() for each in halved.values())
    if num_bytes > most_megabytes * 1e6:
        raise UserError(
            f"{checkpoint.origin} takes {num_bytes / 1e6:.1f} MB at half precision, "
            f"more than {most_megabytes:g}; ship a smaller model, or raise --megabytes."
        )
    about = checkpoint.description
    assert about is not None
    about = replace(about, extra={**about.extra, **extra})
    metadata = {"format": "pt", "t2t": about.to_json(), "version": t2t.__version__}
    write_with_checksum(halved, file, metadata)


def half(name: str, tensor: Tensor) -> Tensor:
    """A tensor in half precision; what is not a fraction stays as it is."""
    if not tensor.is_floating_point():
        return tensor
    halved = tensor.to(torch.float16)
    if not halved.isfinite().all():
        raise UserError(f"{name} holds numbers that half precision cannot hold.")
    return halved


def card(
    recipe: Recipe,
    result: dict[str, Any],
    report: EvalReport,
    num_bytes: int,
    data: str,
) -> str:
    """What a model is, how it was made, how good it is, and what it is not for."""
    trained, score = report.trained, report.score
    size = "×".join(map(str, trained.image_size))
    weights = "averaged" if recipe.ema.decay else "last"
    held_out = f" on {recipe.holdout:,} held-out images" if recipe.holdout else ""
    parts = [
        f"# {recipe.name}",
        f"`{recipe.name}.safetensors`: {trained.name}, {result['parameters']:,} "
        f"parameters at half precision, {num_bytes / 1e6:.1f} MB. It takes images of "
        f"{size} pixels for one of {len(trained.class_names)} classes.",
        "## Data",
        beginnings(recipe, data),
        "## Recipe",
        f"`{recipe.name}`, {counted(recipe.epochs, 'epoch')}, seed {recipe.seed}; "
        f"these are the {weights} weights.",
        # The data's name for its path on the machine that trained it.
        f"```console\n$ {renamed(result['command'], recipe.data, data)}\n```",
        "## Accuracy",
        f"Top-1 {score.top1:.2f} % on {score.num_images:,} images ({report.data}, "
        f"{report.split}), one view of each, measured with this file; "
        f"{result['top1']:.2f} %{held_out} at the end of training, before it was "
        "halved.",
        class_table(report),
        "## Limits",
        limits(size, data),
    ]
    return "\n\n".join(parts) + "\n"


def beginnings(recipe: Recipe, data: str) -> str:
    """What a model was trained on, what it started from and who taught it."""
    held = f", {recipe.holdout:,} of its training images left out"
    images = f"{data}{held if recipe.holdout else ''}"
    teacher = recipe.task_args.get("teacher")
    taught = f" Its teacher was {named(teacher)}." if teacher else ""
    if recipe.weights:
        start = named(recipe.weights)
        return f"Trained on {images}, starting from the weights {start}.{taught}"
    without = "" if teacher else " and without pretrained weights"
    return f"Trained from scratch on {images}, without other images{without}.{taught}"


def named(weights: str) -> str:
    """Weights by their address, or by the name that the file or folder has."""
    is_address = "://" in weights or weights.startswith("hf-hub:")
    return f"`{weights if is_address else Path(weights).name}`"


def class_table(report: EvalReport) -> str:
    """Every class in the order of its name."""
    lines = [
        "| class | images | top-1, % | most often taken for |",
        "|---|---|---|---|",
    ]
    for row in sorted(report.classes(), key=lambda row: row.name):
        name = in_cell(row.name)
        others = ", ".join(in_cell(other) for other, _ in row.taken_for[:2])
        lines.append(f"| {name} | {row.num_images:,} | {row.top1:.1f} | {others} |")
    return "\n".join(lines)


def in_cell(name: str) -> str:
    """A name that breaks neither the lines nor the columns of a table."""
    return on_one_line(name).replace("|", "\\|")


def limits(size: str, data: str) -> str:
    """What the model cannot do."""
    return "\n".join(
        [
            "- It knows these classes and nothing else: an image of anything else gets "
            "one of them too, often with a high probability.",
            f"- It sees {size} pixels: a photograph is shrunk to that, and what is "
            "small in it is lost. Crop to the thing first.",
            f"- It learnt what {data} shows, and how: other views, drawings or several "
            "things at once are new to it.",
            "- It is a demonstration and a start for fine-tuning, not a basis for "
            "decisions about people or safety.",
        ]
    )
