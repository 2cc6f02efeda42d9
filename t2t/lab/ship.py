"""Exports a finished run's model at half precision with a model card."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import t2t
from t2t.atomic import atomic_file
from t2t.deployment.model_card import data_sentence, in_cell, limits
from t2t.errors import UserError
from t2t.formatting import counted, last_part
from t2t.lab.output_dir import file_names, renamed, writing_into
from t2t.models.builtin import CARD
from t2t.models.checkpoint_io.checkpoints import Checkpoint, read_checkpoint
from t2t.models.checkpoint_io.checksum import write_with_checksum
from t2t.models.checkpoint_io.description import Description
from t2t.tasks.registry import primary_metric
from t2t.training.evaluation.evaluate_model import evaluate_model
from t2t.training.evaluation.report import EvalReport
from t2t.training.recipe import Recipe
from t2t.training.run_files import write_text
from t2t.training.saved_run import read_classifier_result, read_recipe, same_data


def ship(
    run: Path,
    into: Path,
    *,
    data: str | None = None,
    data_name: str | None = None,
    most_megabytes: float = 10.0,
    device: str | None = None,
) -> tuple[Path, EvalReport]:
    """Writes a finished run's weights at half precision, evaluates them, writes a card.

    The accuracies in the card are those of the written file. `data_name` is the name
    of the data in the file and the card; without it, the last part of its path.
    """
    result, recipe = read_classifier_result(run), read_recipe(run)
    where = data or recipe.data
    name = data_name or last_part(recipe.data)
    is_own = data_name is not None or same_data(where, recipe.data)
    checkpoint = read_checkpoint(run)
    if checkpoint.description is None:
        raise UserError(f"{checkpoint.origin} does not describe its model.")
    file = into / f"{recipe.name}.safetensors"
    extra = {"data": name, "recipe": recipe.name}
    check_target(into, file)
    check_same(file, checkpoint.description)
    for path in unfinished(file):
        path.unlink()
    # The file appears only if it can be evaluated and its card written.
    with writing_into(into), atomic_file(file) as part:
        write_half(checkpoint, part, extra, most_megabytes)
        # Data that the run itself split is evaluated on its validation part.
        split = "val" if is_own else None
        report = evaluate_model(part, data=where, split=split, device=device)
        assert report is not None  # one process
        report = replace(report, data=name if is_own else last_part(where))
        page = card(recipe, result, report, part.stat().st_size, name)
        write_text(into / CARD, page)
    return file, report


def check_target(into: Path, file: Path) -> None:
    """Raises an error if the folder holds anything but an earlier export."""
    existing = file_names(into) - {path.name for path in unfinished(file)}
    if existing and not {CARD} <= existing <= {CARD, file.name}:
        others = ", ".join(sorted(existing - {CARD, file.name})[:3]) or file.name
        raise UserError(
            f"{into} holds something other than {file.stem} ({others}); give --out a "
            "new folder."
        )


def check_same(file: Path, description: Description) -> None:
    """Raises an error rather than overwrite another model of the same name."""
    if not file.exists():
        return
    existing = read_checkpoint(file).description
    if existing is None or replace(existing, extra=description.extra) != description:
        raise UserError(
            f"{file.parent} holds another model of the name {file.stem}; give --out a "
            "new folder."
        )


def unfinished(file: Path) -> list[Path]:
    """Temporary files of an export that was killed."""
    names = sorted(file_names(file.parent))
    return [file.parent / n for n in names if n.startswith(f".{file.name}.")]


def write_half(
    checkpoint: Checkpoint, file: Path, extra: dict[str, Any], most_megabytes: float
) -> None:
    """Writes the weights in half precision; an error if they do not fit."""
    halved = {name: half(name, each) for name, each in checkpoint.tensors.items()}
    num_bytes = sum(each.numel() * each.element_size() for each in halved.values())
    if num_bytes > most_megabytes * 1e6:
        raise UserError(
            f"{checkpoint.origin} takes {num_bytes / 1e6:.1f} MB at half precision, "
            f"more than {most_megabytes:g}; ship a smaller model, or raise --megabytes."
        )
    about = checkpoint.description
    assert about is not None
    # Tables of labels are files of this machine.
    others = {name: value for name, value in about.extra.items() if name != "labels"}
    about = replace(about, extra={**others, **extra})
    metadata = {"format": "pt", "t2t": about.to_json(), "version": t2t.__version__}
    write_with_checksum(halved, file, metadata)


def half(name: str, tensor: Tensor) -> Tensor:
    """A tensor in half precision; integers are kept."""
    if not tensor.is_floating_point():
        return tensor
    halved = tensor.to(torch.float16)
    if not halved.isfinite().all():
        raise UserError(f"{name} holds numbers that do not fit into half precision.")
    return halved


def card(
    recipe: Recipe,
    result: dict[str, Any],
    report: EvalReport,
    num_bytes: int,
    data: str,
) -> str:
    """The model card: data, recipe, accuracy and limits."""
    trained, score = report.trained, report.score
    metric = primary_metric(recipe.task)
    size = "×".join(map(str, trained.image_size))
    weights = "EMA" if recipe.ema.decay else "raw"
    held_out = f" on {recipe.holdout:,} held-out images" if recipe.holdout else ""
    parts = [
        f"# {recipe.name}",
        f"`{recipe.name}.safetensors`: {trained.name}, {result['parameters']:,} "
        f"parameters at half precision, {num_bytes / 1e6:.1f} MB. It classifies images "
        f"of {size} pixels into {len(trained.class_names)} classes.",
        "## Data",
        data_sentence(recipe, data),
        "## Recipe",
        f"`{recipe.name}`, {counted(recipe.epochs, 'epoch')}, seed {recipe.seed}; "
        f"these are the {weights} weights.",
        # The data's name instead of its path.
        f"```console\n$ {renamed(result['command'], recipe.data, data)}\n```",
        "## Accuracy",
        f"Top-1 {score.top1:.2f} % on {score.num_images:,} images ({report.data}, "
        f"{report.split}), one view per image, measured with this file; "
        f"{metric.show(result[metric.name])}{held_out} at the end of training, in full "
        "precision.",
        class_table(report),
        "## Limits",
        limits(size, data, several=False),
    ]
    return "\n\n".join(parts) + "\n"


def class_table(report: EvalReport) -> str:
    """The accuracy of every class, sorted by name."""
    lines = [
        "| class | images | top-1, % | most often confused with |",
        "|---|---|---|---|",
    ]
    for row in sorted(report.classes(), key=lambda row: row.name):
        name = in_cell(row.name)
        others = ", ".join(in_cell(other) for other, _ in row.confused_with[:2])
        lines.append(f"| {name} | {row.num_images:,} | {row.top1:.1f} | {others} |")
    return "\n".join(lines)
