"""What a model predicts for every image of a set."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jaxtyping import Int64
from torch import Tensor

from t2t.data.sources import Source
from t2t.errors import UserError


@dataclass(frozen=True, kw_only=True)
class ImagePrediction:
    """The prediction for one image."""

    index: int
    """Which image of the source it is."""
    path: str
    """Its file, or what else names an image in its source."""
    label: str
    predicted: str
    confidence: float
    """The probability of the predicted class."""
    label_probability: float
    """The probability of the class that is the label."""

    @property
    def is_correct(self) -> bool:
        """Whether the prediction is the label."""
        return self.label == self.predicted


class Predictions(Sequence[ImagePrediction]):
    """The predictions for a set of images, in the order of their source."""

    def __init__(
        self, source: Source, values: dict[str, Tensor], names: Sequence[str]
    ) -> None:
        self.source, self.values, self.names = source, values, tuple(names)

    def __len__(self) -> int:
        return len(self.values["index"])

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[each] for each in range(*row.indices(len(self)))]
        row = range(len(self))[row]
        index, label, predicted = (
            int(self.values[name][row]) for name in ("index", "label", "predicted")
        )
        return ImagePrediction(
            index=index,
            path=self.source.name(index),
            label=self.names[label],
            predicted=self.names[predicted],
            confidence=float(self.values["confidence"][row]),
            label_probability=float(self.values["label_probability"][row]),
        )

    @property
    def wrong_rows(self) -> Int64[Tensor, " wrong"]:
        """The rows of wrong predictions, the most confident first."""
        is_wrong = self.values["label"] != self.values["predicted"]
        rows = is_wrong.nonzero()[:, 0]
        order = self.values["confidence"][rows].argsort(descending=True, stable=True)
        return rows[order]

    def rows(self, numbers: Tensor) -> list[ImagePrediction]:
        """The predictions in some rows."""
        return [self[row] for row in numbers.tolist()]

    def to_pandas(self) -> Any:
        """A data frame with a row for every image."""
        try:
            import pandas
        except ImportError as error:
            raise UserError(
                "to_pandas needs pandas: pip install pandas, or use as_json."
            ) from error
        frame = pandas.DataFrame([asdict(each) for each in self])
        frame["correct"] = frame["label"] == frame["predicted"]
        return frame.set_index("index")
