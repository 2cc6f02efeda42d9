"""Rows in files, tables and pictures."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from PIL import Image
from rich.console import Console

from t2t.errors import UserError
from t2t.lab.bench.cases import Case, all_cases
from t2t.lab.bench.growth import draw_growth, grown_cases, points
from t2t.lab.bench.rows import markdown_table, merge_row, read_rows, row_line, row_table

BASE = Case(
    model="t2t_vit_7", image_size=224, batch=4, precision="fp32", launch="eager"
)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is drawn without a folder is not left in the project."""
    monkeypatch.chdir(tmp_path)


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
    path = tmp_path / "rows.json"
    rows = [
        row_of(BASE),
        row_of(replace(BASE, batch=8)),
        row_of(replace(BASE, depth=3)),
        row_of(replace(BASE, launch="compiled")),
        row_of(BASE, source="jpeg"),
        row_of(BASE, recipe="imagenet.t2t_vit_7"),
        row_of(BASE, gpu="H"),
        row_of(BASE, source="jpeg", workers=2),
        row_of(BASE, source="jpeg", resident=True),
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
    with pytest.raises(UserError, match=r"rows\.json exists.*; name another file"):
        merge_row(path, row_of(BASE))
    assert path.read_text() == content


def test_the_table_to_paste_has_every_row() -> None:
    rows = [
        row_of(BASE, spread=0.012, milliseconds=3.24, matrix_share=0.5),
        row_of(replace(BASE, depth=3), None, failed="out of memory"),
    ]
    lines = markdown_table(rows).splitlines()
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
    assert row_line(fed).endswith(
        "pack: 1,234.5 images/s, 95.7% of the speed on synthetic images, GPU busy 99.0%"
    )
    assert row_line(row_of(BASE, None, failed="out of memory")).endswith(
        "synthetic: out of memory"
    )
    oblong = row_of(BASE, image_size=[24, 32], source="jpeg", resident=True, workers=1)
    assert "24×32 px, batch 4, fp32, jpeg, resident, 1 worker: " in row_line(oblong)


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_a_narrow_terminal_cuts_no_column(width: int) -> None:
    measured = {"spread": 0.012, "milliseconds": 3.24, "matrix_share": 0.512}
    rows = [
        row_of(replace(BASE, model="t2t_vit_14_resnext"), **measured),
        row_of(BASE, None, failed="RuntimeError: " + 20 * "no such kernel "),
    ]
    console = Console(width=width, height=50, file=io.StringIO(), record=True)
    console.print(row_table(rows, width))
    page = console.export_text()
    assert "…" not in page
    lines = page.splitlines()
    (line,) = (line for line in lines if line.startswith("t2t_vit_14_resnext "))
    assert " 1,234 " in line
    assert ("3.24" in line) == (width > 80) == ("ms" in page.split("also shows")[0])
    assert ("also shows: compile s" in page) == (width < 200)


SIZES = [96, 128, 160, 224, 288, 384, 512]


def test_growing_changes_one_thing_at_a_time() -> None:
    cases = grown_cases(BASE, ["size", "batch", "depth"])
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
    small = grown_cases(replace(BASE, model="t2t_vit_7_32", image_size=32), ["size"])
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
    cases = [case for base in bases for case in grown_cases(base, ["size", "depth"])]
    rows = [row_of(case, 1e5 / case.image_size) for case in cases]
    rows += [row_of(replace(BASE, image_size=777), None, failed="out of memory")]
    rows += [row_of(BASE, 1.0, source="jpeg"), row_of(BASE, 1.0, recipe="r")]
    rows += [row_of(BASE, 9.0, gpu="another")]
    found = points(rows[:-1], BASE, "size")
    assert [row["at"] for row in found] == [*SIZES, 777]
    assert [row["at"] for row in points(rows[:-1], BASE, "depth")] == [2, 4, 7, 10, 14]
    path = draw_growth(rows, bases, ["size", "depth"], "G", tmp_path / "growth.png")
    with Image.open(path) as picture:
        assert picture.width > picture.height > 400


def drawn(
    monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]], *bases: Case
) -> Figure:
    """The picture of grown_cases batches, before it becomes a file."""
    figures: list[Figure] = []
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, *_, **__: figures.append(figure)
    )
    draw_growth(rows, bases, ["batch"], "G", Path("growth.png"))
    return figures[0]


def test_a_picture_of_growth_is_of_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = grown_cases(BASE, ["batch"])
    rows = [row_of(case, 9.0, gpu="another", torch="9") for case in cases]
    rows += [row_of(case, 100.0 * case.batch) for case in cases]
    figure = drawn(monkeypatch, rows, BASE)
    (line,) = figure.axes[0].lines
    assert [*line.get_ydata()] == [100, 200, 400, 800, 1600]
    assert figure.get_suptitle() == "G, fp32, torch 2.11"
    assert figure.axes[0].get_title() == "224 px"


def test_lines_of_growth_have_different_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    bases = [BASE, replace(BASE, precision="bf16"), replace(BASE, image_size=32)]
    rows = [row_of(case) for base in bases for case in grown_cases(base, ["batch"])]
    figure = drawn(monkeypatch, rows, *bases)
    assert figure.get_suptitle() == "G, torch 2.11"
    assert figure.axes[0].get_title() == ""
    assert [line.get_label() for line in figure.axes[0].lines] == [
        "t2t_vit_7, training, fp32, 224 px",
        "t2t_vit_7, training, bf16, 224 px",
        "t2t_vit_7, training, fp32, 32 px",
    ]


def test_growth_leaves_out_rows_that_were_changed_by_hand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = row_of(BASE, 100.0)
    changes = [{"batch": "many"}, {"torch": None}, {"images_per_second": "fast"}]
    rows = [whole, *({**whole, "batch": 64, **change} for change in changes)]
    rows += [
        {name: value for name, value in whole.items() if name != key}
        for key in ("torch", "images_per_second", "peak_memory_gib", "batch")
    ]
    (line,) = drawn(monkeypatch, rows, BASE).axes[0].lines
    assert [*line.get_ydata()] == [100, 100]


def test_growth_that_failed_throughout_is_an_empty_picture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [row_of(case, None, peak_memory_gib=None) for case in grown_cases(BASE, [])]
    assert not drawn(monkeypatch, rows, BASE).axes[0].lines
