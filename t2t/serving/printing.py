"""Prints predictions as a table, JSON lines or CSV."""

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TextIO

from rich import box
from rich.table import Table
from rich.text import Text

from t2t.data.decoding.damage import DamagedImage
from t2t.errors import on_one_line
from t2t.serving.prediction import Prediction

COLUMNS = ("image", "rank", "index", "class", "name", "probability")
_BAR_WIDTH = 20


def as_json(result: Prediction | DamagedImage) -> dict[str, Any]:
    """The predictions of an image, or its error, as JSON."""
    if isinstance(result, DamagedImage):
        return {"image": result.name, "error": result.reason}
    classes = [
        {
            "index": each.index,
            "class": each.class_name,
            "name": each.name,
            "probability": round(each.probability, 6),
        }
        for each in result.classes
    ]
    return {"image": result.image, "predictions": classes}


def write_json_lines(
    results: Iterable[Prediction | DamagedImage], out: TextIO
) -> Iterator[Prediction | DamagedImage]:
    """Writes a line of JSON per image and yields its result."""
    for result in results:
        out.write(json.dumps(as_json(result), ensure_ascii=False) + "\n")
        out.flush()  # for programs that read along
        yield result


def write_csv(
    results: Iterable[Prediction | DamagedImage], out: TextIO
) -> Iterator[Prediction | DamagedImage]:
    """Writes a row per predicted class and yields each result."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for result in results:
        if isinstance(result, Prediction):
            for rank, each in enumerate(result.classes, start=1):
                probability = f"{each.probability:.6f}"
                name = (each.index, each.class_name, each.name)
                writer.writerow((result.image, rank, *name, probability))
            if not result.classes:  # none reaches the threshold
                writer.writerow((result.image, 0, "", "", "", ""))
        yield result


def prediction_table(predictions: Sequence[Prediction]) -> Table:
    """The classes of each image with a probability bar."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("image", style="cyan", overflow="fold")
    table.add_column("class", overflow="fold")
    table.add_column("probability", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, style="blue")
    apart = len(predictions) > 1 and any(len(each.classes) > 1 for each in predictions)
    for prediction in predictions:
        if not prediction.classes:
            low = prediction.best
            none = f"none ({low.name}: {100 * low.probability:.1f} %)"
            table.add_row(
                Text(on_one_line(prediction.image)),
                Text(on_one_line(none), style="dim"),
                end_section=apart,
            )
        last = len(prediction.classes) - 1
        for rank, each in enumerate(prediction.classes):
            table.add_row(
                Text("" if rank else on_one_line(prediction.image)),
                Text(on_one_line(each.name), style="" if rank else "bold"),
                f"{100 * each.probability:.1f} %",
                "█" * round(_BAR_WIDTH * each.probability),
                end_section=apart and rank == last,
            )
    return table
