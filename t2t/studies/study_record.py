"""Records of studies: their tables and pictures, and the runs behind them."""

import shutil
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from t2t.errors import UserError
from t2t.studies.outcome import RUNS
from t2t.studies.place import writing_into
from t2t.studies.record import PAGE, record, rename_data
from t2t.studies.table import NUMBERS, PICTURE, TABLE
from t2t.training.folder import RECIPE, RunFolder, read_json


def is_studies(folder: Path) -> bool:
    """Whether studies wrote their runs and tables there."""
    return (folder / RUNS).is_dir() and any(folder.glob(f"*/{NUMBERS}"))


def record_studies(
    folder: Path, into: Path, *, data_name: str | None = None, held_out: bool = False
) -> list[dict[str, Any]]:
    """Gathers all studies of a folder into a record; their numbers.

    The runs of every arm become a record each, under `into`/runs, as studies share
    arms; table, numbers and picture of a study lie in a folder of its name.
    """
    studies = [path.parent for path in sorted(folder.glob(f"*/{NUMBERS}"))]
    runs = finished_runs(folder)
    check_place(into, [study.name for study in studies])
    with writing_into(into):
        for recipe, some in runs.items():
            place = into / RUNS / recipe
            record(some, place, data_name=data_name, held_out=held_out)
        for study in studies:
            place = into / study.name
            place.mkdir(exist_ok=True)
            for name, kept in ((TABLE, PAGE), (NUMBERS, NUMBERS), (PICTURE, PICTURE)):
                shutil.copyfile(study / name, place / kept)
            if data_name is not None:
                for path in {arm["data"] for arm in read_json(place / NUMBERS)["arms"]}:
                    rename_data([place / PAGE, place / NUMBERS], path, data_name)
        numbers = [read_json(into / study.name / NUMBERS) for study in studies]
        if not (into / PAGE).exists():
            (into / PAGE).write_text(first_page(numbers))
    return numbers


def finished_runs(folder: Path) -> dict[str, list[Path]]:
    """The runs that came to their end, by their recipe's name."""
    found: dict[str, list[Path]] = defaultdict(list)
    for path in sorted((folder / RUNS).iterdir()):
        if RunFolder(path).finished() is not None:
            found[read_json(path / RECIPE)["name"]].append(path)
    return found


def check_place(into: Path, studies: Sequence[str]) -> None:
    """Refuses a folder of something else."""
    there = {path.name for path in into.iterdir()} if into.is_dir() else set()
    if others := there - {*studies, RUNS, PAGE}:
        raise UserError(
            f"{into} holds something that is no record of these studies "
            f"({sorted(others)[0]}); give --into a new folder."
        )


def first_page(numbers: Sequence[dict[str, Any]]) -> str:
    """A page to begin with: the questions, and what came of each."""
    lines = ["# Studies", ""]
    for study in numbers:
        lines.append(f"- [{study['question']}]({study['study']}/{PAGE})")
        lines += [f"  - {finding['sentence']}" for finding in study["findings"]]
    lines += [
        "",
        f"The runs of every arm, with recipe, metrics and log: [{RUNS}]({RUNS}).",
    ]
    return "\n".join(lines) + "\n"
