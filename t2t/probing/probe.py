"""Probes the features of any weights: linear, kNN, few-shot, fine-tuned."""

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from t2t.data.decoding.headers import DEFAULT_MAX_PIXELS
from t2t.data.label_config import PathLike, label_config
from t2t.data.sources import Source, Splits
from t2t.errors import UserError
from t2t.formatting import counted
from t2t.models.trained import TrainedModel, load_trained
from t2t.probing.features import (
    Features,
    extract,
)
from t2t.probing.finetune import finetune
from t2t.probing.frozen import FrozenFeatures, score_frozen
from t2t.probing.images import ImagesOfSplit, find_labelled, some_of, weights_folder
from t2t.probing.options import METHODS, ProbeOptions
from t2t.probing.report import ProbeReport, ProbeResult
from t2t.training.distributed import World, init_distributed
from t2t.training.environment import command_line
from t2t.training.evaluation.evaluate_model import device_name
from t2t.training.evaluation.evaluate_source import (
    EvaluateOptions,
    Progress,
    no_progress,
)
from t2t.training.runtime import Runtime
from t2t.training.threads import use_free_cores


def probe(
    weights: str | os.PathLike[str],
    *,
    data: str | os.PathLike[str] | None = None,
    labels: PathLike | Sequence[PathLike] = (),
    label_columns: str | None = None,
    label_pattern: str | None = None,
    methods: Sequence[str] = ("linear", "knn"),
    split: str | None = None,
    k: int | None = None,
    shots: Sequence[int] | None = None,
    draws: int = 10,
    examples: int = 1000,
    epochs: int = 40,
    train_images: int | None = None,
    val_images: int | None = None,
    seed: int = 0,
    model: str | None = None,
    batch_size: int = 256,
    device: str | None = None,
    precision: str | None = None,
    max_pixels: int = DEFAULT_MAX_PIXELS,
    folder: str | os.PathLike[str] | None = None,
    progress: Progress = no_progress,
) -> ProbeReport:
    """Scores the features of any weights on labelled images, as `t2t probe` does.

    Features are extracted once for all methods. `folder` is where a fine-tuning has its
    run folder; None is the folder of the weights' run, or `runs`.
    """
    options = ProbeOptions(
        methods=methods,
        k=k,
        shots=shots,
        draws=draws,
        examples=examples,
        epochs=epochs,
        train_images=train_images,
        val_images=val_images,
        seed=seed,
    )
    how = EvaluateOptions(
        batch_size=batch_size,
        device=device,
        precision=precision,
        max_pixels=max_pixels,
    )
    parent = weights_folder(weights) if folder is None else Path(folder)
    trained = load_trained(weights, model=model, needs_head=False)
    config = label_config(labels, label_columns, label_pattern)
    train, evaluated_on = find_labelled(trained, data, split, config)
    train = replace(train, source=some_of(train.source, train_images, seed))
    evaluated_on = replace(
        evaluated_on, source=some_of(evaluated_on.source, val_images, seed)
    )
    check_counts(train.source, options, train.where)
    runs = parent or Path("runs")
    return score_all(trained, (train, evaluated_on), options, how, runs, progress)


def score_all(
    trained: TrainedModel,
    images: tuple[ImagesOfSplit, ImagesOfSplit],
    options: ProbeOptions,
    how: EvaluateOptions,
    runs: Path,
    progress: Progress,
) -> ProbeReport:
    """The results of all methods on training and evaluation images."""
    with init_distributed(how.device) as world, use_free_cores(world.device):
        precision = how.precision_on(world.device)
        started = time.perf_counter()
        both = extract_both(trained, images, world, how, progress)
        seconds = time.perf_counter() - started
        device = device_name(world)
        results = score_frozen(FrozenFeatures.of(*both, world.device), options)
    train, evaluated_on = images
    if "finetune" in options.methods:
        runtime = Runtime(
            device=world.device.type,
            precision=precision,  # type: ignore[arg-type]  # checked by `extract`
            compile="off",  # which would take longer than the run
            max_pixels=how.max_pixels,
        )
        splits = Splits(train.source, evaluated_on.source, train.where)
        results += (score_finetuned(trained, splits, options, runs, runtime),)
    return ProbeReport(
        weights=trained.path,
        model=trained.name,
        data=train.where,
        split=evaluated_on.split,
        num_classes=len(train.source.classes),
        num_train=len(both[0]),
        num_evaluated=len(both[1]),
        width=both[0].values.shape[1],
        image_size=trained.image_size,
        crop_fraction=trained.crop_fraction,
        seed=options.seed,
        command=command_line(),
        device=device,
        precision=precision,
        results=results,
        seconds=seconds,
        damaged=(*both[0].damaged, *both[1].damaged),
        notes=tuple(dict.fromkeys((*trained.notes, *train.notes, *evaluated_on.notes))),
    )


def check_counts(train: Source, options: ProbeOptions, where: str) -> None:
    """Raises an error if there are too few training images of a class."""
    counts = np.bincount(train.labels, minlength=len(train.classes))
    smallest = int(counts.argmin())
    most = max(options.shots or (1,))
    if "few-shot" in options.methods and counts[smallest] < most:
        raise UserError(
            f"{most} shots need as many training images of every class, and "
            f"{train.classes[smallest]!r} of {where} has {counts[smallest]}; ask for "
            "fewer shots or more images."
        )
    if options.k is not None and "knn" in options.methods and options.k > len(train):
        raise UserError(
            f"k={options.k} is more than the {len(train)} training images; give less."
        )


def extract_both(
    trained: TrainedModel,
    images: tuple[ImagesOfSplit, ImagesOfSplit],
    world: World,
    how: EvaluateOptions,
    progress: Progress,
) -> tuple[Features, Features]:
    """The features of training and evaluation images, as one progress."""
    num_train, num_val = (len(each.source) for each in images)
    total = num_train + num_val

    def advance_train(done: int, _: int) -> None:
        progress(done, total)

    def advance_val(done: int, _: int) -> None:
        progress(num_train + done, total)

    train = extract(trained, images[0], world, how, advance_train)
    return train, extract(trained, images[1], world, how, advance_val)


def score_finetuned(
    trained: TrainedModel,
    splits: Splits,
    options: ProbeOptions,
    parent: Path,
    runtime: Runtime,
) -> ProbeResult:
    """Fine-tunes all weights on a few examples; the same call resumes."""
    num = min(options.examples, len(splits.train))
    started = time.perf_counter()
    result = finetune(
        trained,
        splits,
        num=num,
        epochs=options.epochs,
        seed=options.seed,
        parent=parent,
        runtime=runtime,
    )
    if not result.finished:
        raise KeyboardInterrupt  # the same command resumes
    return ProbeResult(
        method="finetune",
        label=METHODS["finetune"],
        top1=result.summary["top1"],
        num_images=num,
        setting=f"{counted(options.epochs, 'epoch')}, in {result.folder}",
        details={
            "seeds": [options.seed],
            "epochs": options.epochs,
            "folder": str(result.folder),
        },
        seconds=time.perf_counter() - started,
    )
