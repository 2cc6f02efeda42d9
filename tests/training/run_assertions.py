"""What a finished run is compared by."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file


def assert_model_saved(folder: Path, expected: dict[str, torch.Tensor]) -> None:
    found = load_file(folder / "model.safetensors")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def untimed_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run without times and rates."""
    timed = {"train_seconds", "compile_seconds", "images_per_second"}
    return [
        {key: value for key, value in json.loads(line).items() if key not in timed}
        for line in (folder / "metrics.jsonl").read_text().splitlines()
    ]


def assert_metrics_are_whole(folder: Path) -> None:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    reported = [(row["step"], "top1" in row) for row in rows]
    assert len(reported) == len(set(reported))
    assert reported == sorted(reported)
    assert [step for step, scored in reported if scored] == [6, 12]
