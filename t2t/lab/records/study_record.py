"""Records of studies: their tables, pictures and runs."""

import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t2t.errors import UserError
from t2t.lab.output_dir import file_names, renamed, writing_into
from t2t.lab.records.record import (
    PAGE,
    FinishedRun,
    check_target,
    open_runs,
    write_record,
)
from t2t.lab.studies.report import NUMBERS, PICTURE, TABLE
from t2t.lab.studies.results import RUNS
from t2t.training.run_files import read_json, write_json, write_text
from t2t.training.saved_run import find_result, read_recipe


def is_studies(folder: Path) -> bool:
    """Whether a folder holds the runs and tables of studies."""
    return (folder / RUNS).is_dir() and any(folder.glob(f"*/{NUMBERS}"))


def is_study(folder: Path) -> bool:
    """Whether a folder is one study of such a folder."""
    return (folder / NUMBERS).exists() and is_studies(folder.parent)


def record_studies(
    folder: Path, into: Path, *, data_name: str | None = None, held_out: bool = False
) -> list[dict[str, Any]]:
    """Gathers all studies of a folder into a record; returns their numbers.

    The runs of each arm are a record in `into`/runs, as studies share arms; table,
    numbers and picture of a study are in a folder of its name.
    """
    studies = [path.parent for path in sorted(folder.glob(f"*/{NUMBERS}"))]
    # Everything is checked before anything is written.
    for study in studies:
        check_complete(study)
    runs = {
        recipe: open_runs(some, held_out=held_out)
        for recipe, some in finished_runs(folder).items()
    }
    for study in studies:
        check_up_to_date(study, runs)
    check_apart(into, folder, studies)
    for recipe, some in runs.items():
        check_target(into / RUNS / recipe, some[0])
    numbers: list[dict[str, Any]] = []
    with writing_into(into):
        for recipe, some in runs.items():
            target = into / RUNS / recipe
            target.mkdir(parents=True, exist_ok=True)
            write_record(some, target, data_name)
        for study in studies:
            target = into / study.name
            target.mkdir(exist_ok=True)
            page, table = (study / TABLE).read_text(), read_json(study / NUMBERS)
            for path in {arm["data"] for arm in table["arms"]}:
                name = path if data_name is None else data_name
                page, table = (renamed(each, path, name) for each in (page, table))
            write_text(target / PAGE, page)
            write_json(target / NUMBERS, table)
            shutil.copyfile(study / PICTURE, target / PICTURE)
            numbers.append(table)
        if not (into / PAGE).exists():
            write_text(into / PAGE, first_page(numbers))
    return numbers


def finished_runs(folder: Path) -> dict[str, list[Path]]:
    """The finished runs by the name of their recipe."""
    found: dict[str, list[Path]] = defaultdict(list)
    for path in sorted((folder / RUNS).iterdir()):
        if find_result(path) is not None:
            found[read_recipe(path).name].append(path)
    return found


def check_complete(study: Path) -> None:
    """Raises an error if a study was interrupted while its table was written."""
    for name in (TABLE, NUMBERS, PICTURE):
        if not (study / name).exists():
            raise UserError(
                f"{study} has no {name}: the study was interrupted while writing it; "
                "run the same `t2t study` command to write it again."
            )
    if not is_table(read_json(study / NUMBERS)):
        raise UserError(
            f"{study / NUMBERS} is damaged; run the same `t2t study` command to write "
            "it again."
        )


def is_table(table: Mapping[str, Any]) -> bool:
    """Whether a study's numbers have all keys that a record reads."""
    try:
        for arm in table["arms"]:
            arm["arm"], arm["data"], arm["recipe"], by_seed(table, arm).items()
        sentences = [finding["sentence"] for finding in table["findings"]]
        words = [table["study"], table["question"], *sentences]
    except (KeyError, TypeError, AttributeError):
        return False
    return all(isinstance(word, str) for word in words)


def by_seed(table: Mapping[str, Any], arm: Mapping[str, Any]) -> dict[str, float]:
    """The primary metric of an arm's seeds, top-1 in tables of earlier versions."""
    values: dict[str, float] = arm[table.get("metric", "top1")]["by_seed"]
    return values


def check_up_to_date(study: Path, runs: Mapping[str, Sequence[FinishedRun]]) -> None:
    """Raises an error if a study's table differs from its runs."""
    table = read_json(study / NUMBERS)
    for arm in table["arms"]:
        some = runs.get(arm["recipe"], ())
        now = {str(run.seed): run.result[run.result["metric"]] for run in some}
        if not by_seed(table, arm).items() <= now.items():
            raise UserError(
                f"{study / NUMBERS} differs from the runs of {arm['arm']}; run the "
                "same `t2t study` command to write it again."
            )


def check_apart(into: Path, folder: Path, studies: Sequence[Path]) -> None:
    """Raises an error if the folder holds anything but a record of these studies."""
    if into.resolve().is_relative_to(folder.resolve()):
        raise UserError(
            f"{into} is inside the folder of the studies; give --out a folder "
            "elsewhere."
        )
    if others := file_names(into) - {*(study.name for study in studies), RUNS, PAGE}:
        raise UserError(
            f"{into} holds something other than a record of these studies "
            f"({sorted(others)[0]}); give --out a new folder."
        )


def first_page(numbers: Sequence[dict[str, Any]]) -> str:
    """A first README with the questions and findings."""
    lines = ["# Studies", ""]
    for study in numbers:
        lines.append(f"- [{study['question']}]({study['study']}/{PAGE})")
        lines += [f"  - {finding['sentence']}" for finding in study["findings"]]
    lines += [
        "",
        f"The runs of every arm, with recipe, metrics and log: [{RUNS}]({RUNS}).",
    ]
    return "\n".join(lines) + "\n"
