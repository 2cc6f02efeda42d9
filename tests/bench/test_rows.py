"""Rows in files, tables and pictures."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from t2t.bench.cases import Case, all_cases
from t2t.bench.growth import draw_growth, growing, points
from t2t.bench.rows import in_words, markdown, merge_row, read_rows
from t2t.errors import UserError

BASE = Case(
    model="t2t_vit_7", image_size=224, batch=4, precision="fp32", launch="eager"
)


def row_of(case: Case, rate: float | None = 1234.5, **more: Any) -> dict[str, Any]:
    row = {
        "model": case.model,
        "mode": case.mode,
        "image_size": case.image_size,
        "batch": case.batch,
        "precision": case.precision,
        "source": "synthetic",
        "launch": case.launch,
        "images_per_second": rate,
        "peak_memory_gib": 1.5,
        "torch": "2.11",
        "gpu": "G",
        "command": "t2t bench",
    }
    return row | ({} if case.depth is None else {"depth": case.depth}) | more


def test_a_row_replaces_the_one_of_the_same_thing_only(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rows.json"
    rows = [
        row_of(BASE),
        row_of(replace(BASE, batch=8)),
        row_of(replace(BASE, depth=3)),
        row_of(replace(BASE, launch="compiled")),
        row_of(BASE, source="jpeg"),
        row_of(BASE, recipe="imagenet.t2t_vit_7"),
        row_of(BASE, gpu="H"),
    ]
    for row in rows:
        merge_row(path, row)
    assert read_rows(path) == rows
    newer = row_of(BASE, 2000.0, torch="2.12")
    merge_row(path, newer)
    assert read_rows(path) == [newer, *rows[1:]]
    assert [file.name for file in path.parent.iterdir()] == ["rows.json"]


@pytest.mark.parametrize("content", ["{}", "[1]", "not json"])
def test_a_file_of_something_else_is_refused_and_kept(
    tmp_path: Path, content: str
) -> None:
    path = tmp_path / "rows.json"
    path.write_text(content)
    with pytest.raises(UserError, match=r"rows\.json"):
        merge_row(path, row_of(BASE))
    assert path.read_text() == content


def test_the_table_to_paste_has_every_row() -> None:
    rows = [
        row_of(BASE, spread=0.012, milliseconds=3.24, matrix_share=0.5),
        row_of(replace(BASE, depth=3), None, failed="out of memory"),
    ]
    lines = markdown(rows).splitlines()
    assert lines[2] == (
        "| t2t_vit_7 | train | 224 | 4 | fp32 | synthetic | 1,234 | 1.2% | 3.24 | "
        "1.50 | 50.0% |  |"
    )
    assert "| t2t_vit_7 (3 deep) |" in lines[3]
    assert "| out of memory |" in lines[3]
    assert len({line.count("|") for line in lines[:4]}) == 1
    assert lines[-1] == "G, torch 2.11."


def test_a_row_in_words() -> None:
    fed = row_of(BASE, source="pack", synthetic_share=0.957, busy_share=0.99)
    assert in_words(fed).endswith(
        "pack: 1,234.5 images/s, 95.7% of the step alone, GPU busy 99.0%"
    )
    assert in_words(row_of(BASE, None, failed="out of memory")).endswith(
        "synthetic: out of memory"
    )


SIZES = [96, 128, 160, 224, 288, 384, 512]


def test_growing_changes_one_thing_at_a_time() -> None:
    cases = growing(BASE, ["size", "batch", "depth"])
    assert cases[0] == BASE
    assert len(set(cases)) == len(cases)
    for case in cases[1:]:
        changed = [
            case.image_size != BASE.image_size,
            case.batch != BASE.batch,
            case.depth is not None,
        ]
        assert sum(changed) == 1
    assert {case.image_size for case in cases} == {*SIZES}
    assert {case.batch for case in cases} == {1, 2, 4, 8, 16}
    assert {case.depth for case in cases} == {None, 2, 4, 10, 14}
    small = growing(replace(BASE, model="t2t_vit_7_32", image_size=32), ["size"])
    assert sorted(case.image_size for case in small) == [14, 18, 23, 32, 41, 55, 73]


def test_models_are_measured_at_their_own_size_unless_another_is_given() -> None:
    models = ("t2t_vit_7_32", "resnet18_32", "t2t_vit_14_384", "convnext_tiny")
    rest = (models, ("train",))
    cases = all_cases(*rest, (), (8,), ("fp32",), "eager")
    assert [case.image_size for case in cases] == [32, 32, 384, 224]
    cases = all_cases(*rest, (64, 96), (8,), ("fp32",), "eager")
    assert [case.image_size for case in cases] == [64] * 4 + [96] * 4


def test_a_picture_of_growth_has_a_line_for_every_base(tmp_path: Path) -> None:
    bases = [BASE, replace(BASE, mode="infer")]
    cases = [case for base in bases for case in growing(base, ["size", "depth"])]
    rows = [row_of(case, 1e5 / case.image_size) for case in cases]
    rows += [row_of(replace(BASE, image_size=777), None, failed="out of memory")]
    rows += [row_of(BASE, 1.0, source="jpeg"), row_of(BASE, 1.0, recipe="r")]
    found = points(rows, BASE, "size")
    assert [row["at"] for row in found] == [*SIZES, 777]
    assert [row["at"] for row in points(rows, BASE, "depth")] == [2, 4, 7, 10, 14]
    path = draw_growth(rows, bases, ["size", "depth"], tmp_path / "growth.png")
    with Image.open(path) as picture:
        assert picture.width > picture.height > 400
    json.dumps(rows)
