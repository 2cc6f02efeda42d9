"""The page of mistakes and likely wrong labels."""

import os
from collections.abc import Iterable, Sequence
from itertools import pairwise

import torch
from PIL import Image
from torch import Tensor

from t2t.analysis.html_page import Card, HtmlPage, Text
from t2t.error_analysis.findings import Findings
from t2t.error_analysis.predictions import ImagePrediction, Predictions
from t2t.error_analysis.thumbnails import thumbnails
from t2t.training.evaluation.report import EvalReport

NUM_SHOWN = 48
"""Images in a section; the table beside the page lists all."""
NUM_PAIRS = 30
NUM_CONFUSIONS = 8
NUM_EXAMPLES = 6
NUM_CLASSES = 20
MAX_NAME = 24
"""Characters of a file name."""
BINS = (0.0, 0.5, 0.7, 0.9, 0.99, 1.0)
"""Limits of the confidences whose accuracy is shown."""


def build_page(report: EvalReport, found: Findings, table: str) -> HtmlPage:
    """The page of an evaluation; `table` is the name of the file that lists all."""
    trained, score = report.trained, report.score
    size = "×".join(map(str, trained.image_size))
    page = HtmlPage(
        f"Mistakes and likely wrong labels: {trained.path}",
        f"{trained.name} at {size} pixels predicts the class of "
        f"{score.top1:.2f} % of {score.num_images:,} images correctly: "
        f"{report.data} ({report.split}). All that is found here is also listed in "
        f"{table}, with whole paths.",
    )
    pictures = Pictures(found)
    add_mistakes(page, found, pictures)
    add_wrong_labels(page, found, pictures)
    add_duplicates(page, found, pictures)
    add_confusions(page, found, pictures)
    add_accuracy(page, report, found)
    return page


class Pictures:
    """The pictures that a page shows, each read once."""

    def __init__(self, found: Findings) -> None:
        self.found = found
        shown = torch.cat(
            [
                found.mistakes[:NUM_SHOWN],
                found.wrong_labels[:NUM_SHOWN],
                *(
                    each.rows[:NUM_EXAMPLES]
                    for each in found.confusions[:NUM_CONFUSIONS]
                ),
            ]
        ).tolist()
        pairs = found.duplicates[:NUM_PAIRS]
        of_others = [pair.second for pair in pairs]
        of_others += found.wrong_train_labels[:NUM_SHOWN].tolist()
        others = found.duplicates_of
        self.first = self.read(found.evaluated, [*shown, *(p.first for p in pairs)])
        self.second = self.read(others, of_others)

    @staticmethod
    def read(
        predictions: Predictions, rows: Sequence[int]
    ) -> dict[int, Image.Image | None]:
        """Pictures by the index of the image."""
        indices = predictions.values["index"][torch.tensor(rows, dtype=torch.int64)]
        return thumbnails(predictions.source, indices.tolist())


def add_mistakes(page: HtmlPage, found: Findings, pictures: Pictures) -> None:
    """The most confident mistakes."""
    mistakes = found.evaluated.rows(found.mistakes[:NUM_SHOWN])
    if not mistakes:
        page.section(
            "Most confident mistakes", "None: every image is predicted as labelled."
        )
        return
    page.section(
        "Most confident mistakes",
        f"{shown(len(mistakes), len(found.mistakes), 'wrong predictions')}, the most "
        "confident first: the label, then what the model predicts and its confidence.",
    )
    page.cards(prediction_card(each, pictures.first) for each in mistakes)


def add_wrong_labels(page: HtmlPage, found: Findings, pictures: Pictures) -> None:
    """Likely wrong labels of the evaluated and of the training images."""
    sets = (
        (found.split, found.evaluated, found.wrong_labels, pictures.first),
        ("train", found.trained_on, found.wrong_train_labels, pictures.second),
    )
    for split, predictions, rows, images in sets:
        if predictions is None:
            continue
        title = f"Likely wrong labels ({split})"
        if not len(rows):
            page.section(title, "None found.")
            continue
        listed = predictions.rows(rows[:NUM_SHOWN])
        page.section(
            title,
            f"{shown(len(listed), len(rows), 'images')} whose label is improbable: the "
            "model gives it less than a tenth of its mean probability over all images "
            "with this label. Look at each: some labels are wrong, some images are "
            "just hard.",
        )
        page.cards(prediction_card(each, images) for each in listed)


def add_duplicates(page: HtmlPage, found: Findings, pictures: Pictures) -> None:
    """Images that are in both sets, or twice in one."""
    within = found.trained_on is None and found.split == "train"
    title = "Near-duplicates" if within else "Near-duplicates of training images"
    if found.trained_on is None and not within:
        page.section(title, f"Not searched. {found.note}")
        return
    others = found.duplicates_of
    where = "twice in the training images" if within else "in the training images, too"
    searched = f"{len(others):,} training images searched ({found.note})."
    if not found.duplicates:
        page.section(title, f"None found: {searched}")
        return
    pairs = found.duplicates[:NUM_PAIRS]
    page.section(
        title,
        f"{shown(len(pairs), len(found.duplicates), 'pairs')} of images that are "
        f"{where}: copies, also compressed, resized or a little cropped. Accuracy on "
        "them says little about new images. Different labels come first, since one of "
        f"them is wrong. {searched}",
    )
    page.cards(
        (
            pair_card(
                found.evaluated[pair.first], others[pair.second], found.split, pictures
            )
            for pair in pairs
        ),
        width=260,
    )


def add_confusions(page: HtmlPage, found: Findings, pictures: Pictures) -> None:
    """The pairs of classes that are confused most often, with examples."""
    if not found.confusions:
        return
    page.section(
        "Classes most often confused", "With the most confident mistakes of each."
    )
    for confusion in found.confusions[:NUM_CONFUSIONS]:
        share = 100 * confusion.num_images / confusion.num_of_label
        page.heading(
            f"{confusion.label} predicted as {confusion.predicted}: "
            f"{confusion.num_images:,} of {confusion.num_of_label:,} ({share:.0f} %)"
        )
        examples = found.evaluated.rows(confusion.rows[:NUM_EXAMPLES])
        page.cards(prediction_card(each, pictures.first) for each in examples)


def add_accuracy(page: HtmlPage, report: EvalReport, found: Findings) -> None:
    """Accuracy by confidence and by class."""
    score = report.score
    page.section(
        "Accuracy by confidence",
        "Of a well calibrated model, accuracy and confidence agree in every row. The "
        f"expected calibration error is {score.calibration.ece:.2f} %.",
    )
    page.table(
        ("confidence", "images", "mean confidence", "accuracy"),
        confidence_rows(found.evaluated.values),
    )
    rows = report.classes()
    page.section(
        "Accuracy by class",
        f"top-1 {score.top1:.2f} %, macro accuracy {score.macro_accuracy:.2f} %, loss "
        f"{score.loss:.4f}; the worst classes first.",
    )
    page.table(
        ("class", "images", "correct", "top-1", "most often confused with"),
        (
            (
                row.name,
                f"{row.num_images:,}",
                f"{row.num_correct:,}",
                f"{row.top1:.1f} %",
                ", ".join(f"{name} ({num})" for name, num in row.confused_with[:3]),
            )
            for row in rows[:NUM_CLASSES]
        ),
    )
    if len(rows) > NUM_CLASSES:
        page.paragraph(f"The {NUM_CLASSES} worst of {len(rows):,} classes.", quiet=True)


def confidence_rows(values: dict[str, Tensor]) -> Iterable[tuple[str, ...]]:
    """Images, mean confidence and accuracy for each range of confidences."""
    confidence = values["confidence"].double()
    correct = (values["predicted"] == values["label"]).double()
    for low, high in pairwise(BINS):
        inside = (confidence >= low) & ((confidence < high) | (high == 1.0))
        if num := int(inside.sum()):
            yield (
                f"{100 * low:g} to {100 * high:g} %",
                f"{num:,}",
                f"{100 * float(confidence[inside].mean()):.1f} %",
                f"{100 * float(correct[inside].mean()):.1f} %",
            )


def prediction_card(
    image: ImagePrediction, pictures: dict[int, Image.Image | None]
) -> Card:
    """An image, its label, and what is predicted."""
    return Card(
        (pictures[image.index],),
        (
            (
                Text(f"{image.label} → "),
                Text(image.predicted, "right" if image.is_correct else "wrong"),
            ),
            (Text(percent(image.confidence)),),
            (Text(short_path(image.path)),),
        ),
        title=image.path,
    )


def pair_card(
    first: ImagePrediction, second: ImagePrediction, split: str, pictures: Pictures
) -> Card:
    """Two images that look the same, with their labels."""
    label = (
        (Text(f"both {first.label}"),)
        if first.label == second.label
        else (Text(f"{first.label} and {second.label}", "wrong"),)
    )
    other = split if pictures.found.trained_on is None else "train"
    return Card(
        (pictures.first[first.index], pictures.second[second.index]),
        (
            label,
            (Text(f"{split}: {short_path(first.path)}"),),
            (Text(f"{other}: {short_path(second.path)}"),),
        ),
        title=f"{first.path}\n{second.path}",
    )


def shown(num: int, total: int, what: str) -> str:
    """How many of how many are shown."""
    if num == total:
        what = what.removesuffix("s") if num == 1 else what
        return f"{num:,} {what}"
    return f"{num:,} of {total:,} {what}"


def percent(probability: float) -> str:
    """A probability in per cent; 100 only if it is."""
    return f"{min(100 * probability, 99.9):.1f} %" if probability < 1 else "100 %"


def short_path(path: str) -> str:
    """The last part of a path, or the end of that."""
    name = os.path.basename(path)
    return name if len(name) <= MAX_NAME else f"…{name[1 - MAX_NAME :]}"
