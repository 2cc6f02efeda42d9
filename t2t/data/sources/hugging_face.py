"""Datasets of the library `datasets`, as load_dataset returns them."""

from copy import copy
from typing import Any

from torch import Tensor

from t2t.data.decoding.damage import unread
from t2t.data.image_files import read_whole
from t2t.data.sources.base import Indices, Source, no_labels
from t2t.data.sources.labels import labels_and_classes
from t2t.data.sources.parquet_columns import columns_of
from t2t.errors import UserError


def is_hugging_face(data: object) -> bool:
    """Whether this is one of the library's classes; does not import it."""
    return type(data).__module__.split(".")[0] == "datasets"


class HuggingFaceSource(Source):
    """The rows of a dataset with a column of images, read as they are stored."""

    def __init__(
        self,
        dataset: Any,
        column: str,
        labels: Indices,
        classes: tuple[str, ...],
        title: str,
    ) -> None:
        self.dataset, self.column = dataset, column
        self.labels, self.classes, self.title = labels, classes, title

    def read(self, index: int) -> bytes | Tensor:
        try:
            image = self.dataset[index][self.column]
            stored: bytes | None = image.get("bytes")
            return stored if stored is not None else read_whole(image.get("path") or "")
        except Exception as error:  # of any kind: a row may be anything
            raise unread(self.name(index), error) from error

    def name(self, index: int) -> str:
        return f"{self.title}[{index}]"


def hugging_face_source(dataset: Any, title: str) -> Source:
    """The images of a Dataset, with labels if it has a column of them."""
    if not hasattr(dataset, "cast_column") or not hasattr(dataset, "__len__"):
        raise UserError(
            f"data is a {type(dataset).__name__}, which can only be iterated: load it "
            "with streaming=False."
        )
    if not len(dataset):
        raise UserError(f"The {title} holds no images.")
    import datasets

    columns = columns_of(dataset.features.arrow_schema, f"The {title}", labels=False)
    if not isinstance(dataset.features[columns.image], datasets.Image):
        raise UserError(
            f"The {title} has no column of images: cast one with "
            f"dataset.cast_column({columns.image!r}, datasets.Image())."
        )
    # A transform or format of the user's decodes and changes what is read.
    unformatted = copy(dataset).with_format(None)
    encoded = unformatted.cast_column(columns.image, datasets.Image(decode=False))
    labels, classes = no_labels(len(dataset)), columns.classes or ()
    if columns.label is not None:
        values = list(unformatted[columns.label])
        labels, classes = labels_and_classes(values, columns.classes, f"the {title}")
    return HuggingFaceSource(encoded, columns.image, labels, classes, title)
