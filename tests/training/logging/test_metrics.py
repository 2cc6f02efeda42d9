"""Lines of numbers are whole, whatever happens to the disk or the process."""

import json
import os
from pathlib import Path

import pytest

from t2t.commands.train_summary import curves
from t2t.tasks.classify import TOP1
from t2t.training.logging import metrics
from t2t.training.logging.curves import draw_curves
from t2t.training.logging.metrics import MetricsFile, read_rows


def test_rows_after_the_step_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 3}\n{"step": 5}\n{"st')
    file = MetricsFile(path)
    assert file.open_until(3, 5) == [{"step": 1}, {"step": 3}]
    file.add({"step": 4, "loss": 0.5})
    file.close()
    assert path.read_text() == '{"step": 1}\n{"step": 3}\n{"step": 4, "loss": 0.5}\n'


def test_damaged_lines_cost_only_themselves(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n\xff\xfe\n[1]\n{"no": 1}\n{"step": 2}\n')
    assert read_rows(path) == [{"step": 1}, {"step": 2}]
    assert read_rows(tmp_path / "none.jsonl") == []


def test_a_line_that_fits_in_part_is_written_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl")
    file.open_until(0, 5)
    file.add({"step": 1})
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(metrics.os, "write", lambda handle, line: write(handle, line[:5]))
        with pytest.raises(OSError, match="No space left"):
            file.add({"step": 2})
    assert file.path.read_text() == '{"step": 1}\n'
    file.add({"step": 3})
    file.close()
    assert read_rows(file.path) == [{"step": 1}, {"step": 2}, {"step": 3}]


@pytest.mark.parametrize(
    "line",
    [
        '{"step": "7"}',
        '{"step": true}',
        '{"step": null, "loss": 1.0}',
        '{"step": 7.5}',
        '{"step": 1e400}',
        '{"step": 7, "loss": "low"}',
        '{"step": 7, "loss": NaN}',
        '{"step": 7, "lr": [1]}',
        '{"step": 7, "top1": {}, "val_loss": 1}',
        '{"step": 7, "val_loss": -Infinity}',
        '{"step": 7, "train_seconds": "1"}',
        '{"step": 7, "num_images": 1' + 400 * "0" + "}",
        '{"step": ' + 5000 * "1" + "}",
        9999 * "[",
        '"step"',
    ],
)
def test_a_row_of_the_wrong_kind_costs_only_itself(tmp_path: Path, line: str) -> None:
    path = tmp_path / "metrics.jsonl"
    good = {"step": 1, "loss": None, "lr": 0, "top1": 5.5, "extra": 1}
    path.write_text(f"{json.dumps(good)}\n{line}\n")
    assert read_rows(path) == [good]
    draw_curves(read_rows(path), "title", tmp_path / "curves.png", TOP1)
    curves(path, TOP1)
    file = MetricsFile(path)
    assert file.open_until(9, 9) == [good]
    file.close()


def test_numbers_that_are_no_file_do_not_spoil_the_end(tmp_path: Path) -> None:
    curves(tmp_path, TOP1)
