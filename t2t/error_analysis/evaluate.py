"""`t2t.evaluate`: evaluates a model, and finds mistakes and likely wrong labels."""

import csv
import io
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64
from rich.console import Console
from torch import Tensor, nn

from t2t.analysis.near_duplicates import colour_features
from t2t.atomic import atomic_file
from t2t.data.decoding.damage import DEFAULT_MAX_DAMAGED
from t2t.data.decoding.headers import DEFAULT_MAX_PIXELS
from t2t.data.label_config import PathLike, label_config
from t2t.data.sources import Source
from t2t.data.sources.in_memory import Data, data_name
from t2t.error_analysis.findings import Findings, find
from t2t.error_analysis.page import build_page
from t2t.error_analysis.predictions import ImagePrediction, Predictions
from t2t.error_analysis.training_images import find_training_images
from t2t.errors import UserError, first_line
from t2t.models.config import Size
from t2t.models.create import as_size
from t2t.models.trained import load_trained
from t2t.probing.images import some_of
from t2t.shapes import Images, Labels
from t2t.table_beside import OF_REPORT, table_beside
from t2t.torchrun import env_count
from t2t.training.distributed import init_distributed
from t2t.training.evaluation.evaluate_model import Scorer, evaluate_model
from t2t.training.evaluation.evaluate_source import (
    EvaluateOptions,
    Progress,
    evaluate_source,
    no_progress,
)
from t2t.training.evaluation.report import ClassRow, EvalReport
from t2t.training.threads import use_free_cores

DEFAULT_TRAIN_IMAGES = 50_000
"""Training images that are searched for wrong labels and copies."""
WIDTH = 100


@dataclass(frozen=True)
class Evaluation:
    """How good a model is on some images, and where it is wrong.

    It prints as a table. `findings` and `save_report` also read the training images.
    """

    report: EvalReport
    max_pixels: int = DEFAULT_MAX_PIXELS
    max_damaged: str = DEFAULT_MAX_DAMAGED

    @property
    def top1(self) -> float:
        """Per cent of the images whose label is predicted."""
        return self.report.score.top1

    @property
    def top5(self) -> float:
        """Per cent of the images whose label is among the first five predictions."""
        return self.report.score.top5

    @property
    def macro_accuracy(self) -> float:
        """The mean accuracy of the classes, in per cent."""
        return self.report.score.macro_accuracy

    @property
    def ece(self) -> float:
        """The expected calibration error, in per cent."""
        return self.report.score.calibration.ece

    @property
    def loss(self) -> float:
        """The mean cross-entropy."""
        return self.report.score.loss

    @property
    def num_images(self) -> int:
        """How many images were evaluated."""
        return self.report.score.num_images

    @property
    def classes(self) -> list[ClassRow]:
        """Every class with its accuracy, the worst first."""
        return self.report.classes()

    @property
    def confusion(self) -> Int64[Tensor, "true predicted"]:
        """Images by true class (rows) and predicted class (columns)."""
        return self.report.score.confusion.to_dense()

    @cached_property
    def predictions(self) -> Predictions:
        """What is predicted for every image, in the order of the data."""
        report = self.report
        return Predictions(report.source, report.values, report.trained.readable_names)

    @property
    def wrong(self) -> list[ImagePrediction]:
        """The wrong predictions, the most confident first."""
        return self.predictions.rows(self.predictions.wrong_rows)

    @property
    def wrong_paths(self) -> list[str]:
        """The files of wrong predictions, or what else names their images."""
        return [each.path for each in self.wrong]

    def to_pandas(self) -> Any:
        """A data frame with a row for every image: path, label, prediction."""
        return self.predictions.to_pandas()

    def as_json(self) -> dict[str, Any]:
        """The numbers as plain values, as `t2t eval --json` prints them."""
        return self.report.as_json()

    def to_json(self) -> str:
        """The numbers as a text of JSON."""
        return json.dumps(self.as_json(), indent=1)

    def confusion_figure(self) -> Any:
        """The confusion matrix as a figure of matplotlib."""
        from t2t.analysis.confusion_figure import confusion_figure

        names, title = self.report.trained.readable_names, self.report.data
        return confusion_figure(self.report.score.confusion, names, title)

    def findings(
        self,
        train_images: int = DEFAULT_TRAIN_IMAGES,
        progress: Progress = no_progress,
    ) -> Findings:
        """Most confident mistakes, likely wrong labels and near-duplicates.

        Evaluates up to `train_images` training images as well, drawn at random.
        """
        report = self.report
        if train_images < 0:
            raise UserError(
                f"train_images={train_images} is too small: give 0 or more."
            )
        others, note = None, "No training images were asked for."
        if train_images and report.split != "train":
            found = find_training_images(report)
            note = found.note
            if found.source is not None:
                some = some_of(found.source, train_images, seed=0)
                if len(some) < len(found.source):
                    note += f", drawn from {len(found.source):,}"
                others = self._predict(some, progress)
        return find(self.predictions, report.split, others, note)

    def _predict(self, source: Source, progress: Progress) -> Predictions:
        """The predictions for other images, by the same settings."""
        report, trained = self.report, self.report.trained
        device = next(trained.model.parameters()).device
        options = EvaluateOptions(
            batch_size=report.batch_size,
            precision=report.precision,
            max_pixels=self.max_pixels,
            max_damaged=self.max_damaged,
        )
        scorer = Scorer(flip=report.flip, keeps_logits=False, also=score_colours)
        with init_distributed(str(device)) as world, use_free_cores(world.device):
            found = evaluate_source(trained, source, scorer, world, options, progress)
        return Predictions(source, found.values, trained.readable_names)

    def save_report(
        self,
        path: str | os.PathLike[str],
        train_images: int = DEFAULT_TRAIN_IMAGES,
        progress: Progress = no_progress,
    ) -> Findings:
        """Writes the page of mistakes, and beside it a .csv that lists all."""
        file = Path(path).expanduser()
        table = table_beside(file, OF_REPORT)
        found = self.findings(train_images, progress)
        try:
            # Neither replaces an earlier one if the other cannot be written.
            with atomic_file(file) as page, atomic_file(table) as beside:
                build_page(self.report, found, table.name).write(page)
                beside.write_bytes(as_csv(found.records()))
        except OSError as error:
            raise UserError(
                f"{file} could not be written ({first_line(error)})."
            ) from error
        return found

    def __str__(self) -> str:
        console = Console(width=WIDTH, color_system=None, file=io.StringIO())
        with console.capture() as captured:
            console.print(self.report.render())
        return "\n".join(line.rstrip() for line in captured.get().splitlines())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The table in a notebook."""
        console = Console(width=WIDTH, record=True, file=io.StringIO())
        console.print(self.report.render())
        return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")


def evaluate(
    weights: str | os.PathLike[str],
    data: Data | None = None,
    *,
    labels: PathLike | Sequence[PathLike] = (),
    label_columns: str | None = None,
    label_pattern: str | None = None,
    split: str | None = None,
    model: str | None = None,
    batch_size: int = 256,
    device: str | None = None,
    precision: str | None = None,
    real: bool = False,
    flip: bool = False,
    image_size: int | Size | None = None,
    max_pixels: int = DEFAULT_MAX_PIXELS,
    max_damaged: str = DEFAULT_MAX_DAMAGED,
    progress: Progress = no_progress,
) -> Evaluation:
    """Evaluates a run or weights on the run's validation images or on other data.

    `data` is a path or a name as for `t2t eval`, or the Python objects that `t2t.train`
    takes. Keywords are the options of `t2t eval`.
    """
    if env_count("WORLD_SIZE") > 1:
        raise UserError(
            "t2t.evaluate runs as one process: start it without torchrun, or use "
            "t2t eval."
        )
    size = None if image_size is None else as_size(image_size)
    report = evaluate_model(
        load_trained(weights, model=model, image_size=size),
        data=data_name(data),
        label_config=label_config(labels, label_columns, label_pattern),
        split=split,
        batch_size=batch_size,
        device=device,
        precision=precision,
        real=real,
        flip=flip,
        max_pixels=max_pixels,
        max_damaged=max_damaged,
        also=score_colours,
        progress=progress,
    )
    assert report is not None
    return Evaluation(report, max_pixels, max_damaged)


def score_colours(
    model: nn.Module, images: Images, labels: Labels
) -> dict[str, Tensor]:
    """The colours of every image, by which near-duplicates are found."""
    return {"colours": colour_features(images).to(torch.float16)}


def as_csv(records: list[dict[str, Any]]) -> bytes:
    """Records as CSV; only the header if there are none."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, OF_REPORT, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    # File names may be any bytes; programs get them unchanged.
    return text.getvalue().encode(errors="surrogateescape")
