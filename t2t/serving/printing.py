"""Predictions as people and programs read them: a table, JSON lines or CSV."""

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TextIO

from rich import box
from rich.table import Table
from rich.text import Text

from t2t.data.decoding.damage import DamagedImage
from t2t.errors import on_one_line
from t2t.serving.predictor import Prediction

COLUMNS = ("image", "rank", "index", "class", "name", "probability")
_BAR_WIDTH = 20


def as_json(outcome: Prediction | DamagedImage) -> dict[str, Any]:
    """One image's predictions, or what is wrong with it, for programs."""
    if isinstance(outcome, DamagedImage):
        return {"image": outcome.name, "error": outcome.reason}
    guesses = [
        {
            "index": guess.index,
            "class": guess.class_name,
            "name": guess.name,
            "probability": round(guess.probability, 6),
        }
        for guess in outcome.guesses
    ]
    return {"image": outcome.image, "predictions": guesses}


def write_json_lines(
    outcomes: Iterable[Prediction | DamagedImage], out: TextIO
) -> Iterator[Prediction | DamagedImage]:
    """Writes a line of JSON for each image and passes it on."""
    for outcome in outcomes:
        out.write(json.dumps(as_json(outcome), ensure_ascii=False) + "\n")
        out.flush()  # for whoever reads along
        yield outcome


def write_csv(
    outcomes: Iterable[Prediction | DamagedImage], out: TextIO
) -> Iterator[Prediction | DamagedImage]:
    """Writes a row for each guess, damaged images without one, and passes all on."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for outcome in outcomes:
        if isinstance(outcome, Prediction):
            for rank, guess in enumerate(outcome.guesses, start=1):
                probability = f"{guess.probability:.6f}"
                name = (guess.index, guess.class_name, guess.name)
                writer.writerow((outcome.image, rank, *name, probability))
        yield outcome


def prediction_table(predictions: Sequence[Prediction]) -> Table:
    """The guesses of each image, one below the other, with a bar for each."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("image", style="cyan", overflow="fold")
    table.add_column("class", overflow="fold")
    table.add_column("probability", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, style="blue")
    apart = len(predictions) > 1 and len(predictions[0].guesses) > 1
    for prediction in predictions:
        last = len(prediction.guesses) - 1
        for rank, guess in enumerate(prediction.guesses):
            table.add_row(
                Text("" if rank else on_one_line(prediction.image)),
                Text(on_one_line(guess.name), style="" if rank else "bold"),
                f"{100 * guess.probability:.1f} %",
                "█" * round(_BAR_WIDTH * guess.probability),
                end_section=apart and rank == last,
            )
    return table
