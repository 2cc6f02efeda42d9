"""The README's tables are those of the records."""

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("tables")


def test_the_readme_is_current(tables: ModuleType) -> None:
    readme = (ROOT / "README.md").read_text()
    assert tables.current(readme, ROOT / "records") == readme, "run `make tables`"


def test_the_scaling_tables_are_current(tables: ModuleType) -> None:
    page = (ROOT / "docs" / "scaling.md").read_text()
    scaling = importlib.import_module("scaling_table")
    assert scaling.current(page) == page, "run `make tables`"


def test_a_table_replaces_the_old_one(tables: ModuleType) -> None:
    page = "a\n<!-- table: it -->\nold\n<!-- end: it -->\nb"
    filled = tables.fill(page, "it", "| new \\1 |\n")
    assert filled == "a\n<!-- table: it -->\n| new \\1 |\n<!-- end: it -->\nb"
    assert tables.fill(filled, "it", "") == page.replace("old\n", "")


@pytest.mark.parametrize("page", ["", "<!-- table: it -->", "<!-- end: it -->"])
def test_a_page_without_marks_is_refused(tables: ModuleType, page: str) -> None:
    with pytest.raises(ValueError, match="must hold <!-- table: it -->"):
        tables.fill(page, "it", "| new |")


def row(model: str, rate: float | None, **changes: Any) -> dict[str, Any]:
    usual = {
        "model": model,
        "mode": "train",
        "image_size": 224,
        "batch": 256,
        "precision": "bf16",
        "source": "synthetic",
        "images_per_second": rate,
        "peak_memory_gib": 7.74,
        "torch": "2.11.0",
        "gpu": "NVIDIA H200",
        "command": f"t2t bench {model}",
    }
    return usual | changes


ROWS = [
    row("t2t_vit_14", 4418.4),
    row("t2t_vit_14", 10948, mode="infer"),
    row("t2t_vit_14", 9999, batch=512),
    row("t2t_vit_14", 99999, launch="eager_graph"),
    row("t2t_vit_14", 99999, recipe="imagenet.t2t_vit_14"),
    row("t2t_vit_14", None, precision="fp32", failed="out of memory"),
    row("deit_small_patch16_224", 8885),
    row("t2t_vit_14", 4000, source="jpeg", synthetic_share=0.9, busy_share=0.951),
    row(
        *("t2t_vit_7_32", 45000),
        recipe="cifar10.t2t_vit_7",
        phases=[
            {"keep": keep, "images_per_second": rate}
            for keep, rate in ((0.5, 50000), (1.0, 30000), (1.0, 30001))
        ],
    ),
    row(
        *("t2t_vit_7_32", 99999),
        recipe="calm.at.the.end",
        phases=[{"keep": 1.0, "images_per_second": rate} for rate in (50000, 30000)],
    ),
    row("t2t_vit_14", 99999, source="jpeg", mode="infer"),
    row("t2t_vit_14", 99999, source="jpeg", synthetic_share=0.9, workers=1),
]


def test_the_speed_section_shows_the_rows(tables: ModuleType, tmp_path: Path) -> None:
    assert tables.speed_section(tmp_path) == ""
    (tmp_path / "speed").mkdir()
    (tmp_path / "speed" / "h200.json").write_text(json.dumps(ROWS))
    lines = tables.speed_section(tmp_path).splitlines()
    assert lines[0] == "## Speed"
    assert lines[2].startswith("One NVIDIA H200, torch 2.11.0,")
    assert [line for line in lines if line.startswith(("| t2t", "| deit"))] == [
        "| t2t_vit_14 | 512 | 9,999 | 7.7 | – | – | – |",
        "| deit_small_patch16_224 | 256 | 8,885 | 7.7 | – | – | – |",
        "| t2t_vit_14 | 256 | 4,418 | 7.7 | 2,209 (× 2.0) | 10,948 | 5,474 (× 2.0) |",
        "| t2t_vit_14 | 256 | JPEG files | 4,000 | 90% | 95% |",
    ]
    assert lines[-1].endswith(
        "trains at 45,000 images/s: 50,000 with token dropping, 30,000 without."
    )


def test_the_findings_show_every_study(tables: ModuleType, tmp_path: Path) -> None:
    assert tables.findings_section(tmp_path) == ""
    study = {
        "question": "Which tokens?",
        "seeds": [0, 1],
        "arms": [
            {"arm": "hard", "top1": {"mean": 80.0, "by_seed": {"0": 80.0}}},
            {"arm": "soft", "top1": {"mean": 85.5, "by_seed": {"0": 85.0, "1": 86.0}}},
        ],
        "findings": [
            {"first": "soft", "second": "hard", "verdict": "agrees"},
            {"first": "soft", "second": "soft", "verdict": "agrees"},
            {"first": "hard", "second": "soft", "verdict": "disagrees"},
        ],
    }
    folder = tmp_path / "studies" / "tokens"
    folder.mkdir(parents=True)
    (folder / "table.json").write_text(json.dumps(study))
    assert tables.findings_section(tmp_path).splitlines()[-1] == (
        "| [Which tokens?](records/studies/tokens/README.md) "
        "| `soft` 85.50 ± 0.71, `hard` 80.00 (1 of 2 seeds) "
        "| 2 agree, 1 disagrees (`hard` against `soft`) |"
    )
