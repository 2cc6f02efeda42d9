"""Predictions in three forms."""

import csv
import io
import json

from rich.console import Console

from t2t.data.decoding.damage import DamagedImage
from t2t.serving.predictor import ClassProbability, Prediction
from t2t.serving.printing import prediction_table, write_csv, write_json_lines

CAT = ClassProbability(281, "n02123045", "tabby, tabby cat", 0.75)
TIGER = ClassProbability(292, "n02129604", "tiger, Panthera tigris", 0.2)
OUTCOMES = [
    Prediction("a, b.png", (CAT, TIGER)),
    DamagedImage("c.png", "the file is empty"),
]


def test_json_lines() -> None:
    out = io.StringIO()
    assert list(write_json_lines(OUTCOMES, out)) == OUTCOMES
    first, second = map(json.loads, out.getvalue().splitlines())
    assert first["image"] == "a, b.png"
    assert first["predictions"][1] == {
        "index": 292,
        "class": "n02129604",
        "name": "tiger, Panthera tigris",
        "probability": 0.2,
    }
    assert second == {"image": "c.png", "error": "the file is empty"}


def test_csv() -> None:
    out = io.StringIO()
    assert list(write_csv(OUTCOMES, out)) == OUTCOMES
    rows = list(csv.DictReader(out.getvalue().splitlines()))
    assert [row["rank"] for row in rows] == ["1", "2"]
    assert {row["image"] for row in rows} == {"a, b.png"}
    assert rows[0]["name"] == "tabby, tabby cat"
    assert float(rows[0]["probability"]) == 0.75


def test_table() -> None:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(prediction_table([OUTCOMES[0], OUTCOMES[0]]))
    lines = console.export_text().splitlines()
    (head,) = (line for line in lines if "probability" in line)
    assert head.startswith("image")
    assert sum("a, b.png" in line for line in lines) == 2
    assert sum("tabby, tabby cat" in line and "75.0 %" in line for line in lines) == 2
    bars = [line.count("█") for line in lines if "%" in line]
    assert bars == [15, 4, 15, 4]


def test_names_that_would_break_a_table() -> None:
    odd = ClassProbability(0, "odd", "two\nlines \x1b[31m [/b] é", 1.0)
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(prediction_table([Prediction("a\tb\u2028\udcff [/c].png", (odd,))]))
    (row,) = (line for line in console.export_text().splitlines() if "%" in line)
    assert row.startswith("a\\tb\\u2028\\udcff [/c].png")
    assert "two\\nlines \\x1b[31m [/b] é" in row
    out = io.StringIO()
    assert list(write_json_lines([Prediction("a\nb", (odd,))], out))
    assert json.loads(out.getvalue())["predictions"][0]["name"] == odd.name


def test_a_damaged_image_is_named_on_one_line() -> None:
    assert str(DamagedImage("a\nb.png", "cut short")) == "a\\nb.png: cut short"
