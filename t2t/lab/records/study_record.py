"""Records of studies: their tables and pictures, and the runs behind them."""

import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t2t.errors import UserError
from t2t.lab.output_dir import renamed, writing_into
from t2t.lab.records.record import (
    PAGE,
    FinishedRun,
    check_place,
    open_runs,
    write_record,
)
from t2t.lab.studies.report import NUMBERS, PICTURE, TABLE
from t2t.lab.studies.results import RUNS
from t2t.training.run_folder import (
    RunFolder,
    read_json,
    read_recipe,
    write_json,
    write_page,
)


def is_studies(folder: Path) -> bool:
    """Whether studies wrote their runs and tables there."""
    return (folder / RUNS).is_dir() and any(folder.glob(f"*/{NUMBERS}"))


def is_study(folder: Path) -> bool:
    """Whether it is the folder of one study among those."""
    return (folder / NUMBERS).exists() and is_studies(folder.parent)


def record_studies(
    folder: Path, into: Path, *, data_name: str | None = None, held_out: bool = False
) -> list[dict[str, Any]]:
    """Gathers all studies of a folder into a record; their numbers.

    The runs of every arm become a record each, under `into`/runs, as studies share
    arms; table, numbers and picture of a study lie in a folder of its name.
    """
    studies = [path.parent for path in sorted(folder.glob(f"*/{NUMBERS}"))]
    # All is read and checked before anything is written.
    for study in studies:
        check_whole(study)
    runs = {
        recipe: open_runs(some, held_out=held_out)
        for recipe, some in finished_runs(folder).items()
    }
    for study in studies:
        check_told(study, runs)
    check_apart(into, folder, studies)
    for recipe, some in runs.items():
        check_place(into / RUNS / recipe, some[0])
    numbers: list[dict[str, Any]] = []
    with writing_into(into):
        for recipe, some in runs.items():
            place = into / RUNS / recipe
            place.mkdir(parents=True, exist_ok=True)
            write_record(some, place, data_name)
        for study in studies:
            place = into / study.name
            place.mkdir(exist_ok=True)
            page, told = (study / TABLE).read_text(), read_json(study / NUMBERS)
            for path in {arm["data"] for arm in told["arms"]}:
                name = path if data_name is None else data_name
                page, told = (renamed(each, path, name) for each in (page, told))
            write_page(place / PAGE, page)
            write_json(place / NUMBERS, told)
            shutil.copyfile(study / PICTURE, place / PICTURE)
            numbers.append(told)
        if not (into / PAGE).exists():
            write_page(into / PAGE, first_page(numbers))
    return numbers


def finished_runs(folder: Path) -> dict[str, list[Path]]:
    """The runs that came to their end, by their recipe's name."""
    found: dict[str, list[Path]] = defaultdict(list)
    for path in sorted((folder / RUNS).iterdir()):
        if RunFolder(path).finished() is not None:
            found[read_recipe(path).name].append(path)
    return found


def check_whole(study: Path) -> None:
    """Refuses a study that was stopped while its table was written."""
    for name in (TABLE, NUMBERS, PICTURE):
        if not (study / name).exists():
            raise UserError(
                f"{study} holds no {name}: its study was stopped while writing it; the "
                "same `t2t study` command writes it again."
            )
    if not is_table(read_json(study / NUMBERS)):
        raise UserError(
            f"{study / NUMBERS} is not what a study writes; the same `t2t study` "
            "command writes it again."
        )


def is_table(told: Mapping[str, Any]) -> bool:
    """Whether all is there that a record reads of a study's numbers."""
    try:
        for arm in told["arms"]:
            arm["arm"], arm["data"], arm["recipe"], arm["top1"]["by_seed"].items()
        sentences = [finding["sentence"] for finding in told["findings"]]
        words = [told["study"], told["question"], *sentences]
    except (KeyError, TypeError, AttributeError):
        return False
    return all(isinstance(word, str) for word in words)


def check_told(study: Path, runs: Mapping[str, Sequence[FinishedRun]]) -> None:
    """Refuses a table that tells other numbers than the runs that there are now."""
    for arm in read_json(study / NUMBERS)["arms"]:
        some = runs.get(arm["recipe"], ())
        now = {str(run.seed): run.result["top1"] for run in some}
        if not arm["top1"]["by_seed"].items() <= now.items():
            raise UserError(
                f"{study / NUMBERS} tells of other runs of {arm['arm']} than there are "
                "now; the same `t2t study` command writes it again."
            )


def check_apart(into: Path, folder: Path, studies: Sequence[Path]) -> None:
    """Refuses a folder of something else, or of the studies themselves."""
    if into.resolve().is_relative_to(folder.resolve()):
        raise UserError(
            f"{into} is where the studies themselves lie; give --into a folder "
            "elsewhere."
        )
    there = {path.name for path in into.iterdir()} if into.is_dir() else set()
    if others := there - {*(study.name for study in studies), RUNS, PAGE}:
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
