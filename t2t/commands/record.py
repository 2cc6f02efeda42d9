"""Records: finished runs kept so that anyone can check them."""

from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, UseAppendAction

from t2t.commands.options import option
from t2t.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path


def record(
    runs: Annotated[
        Positional[tuple[str, ...]],
        option(
            "Finished runs of one recipe, a seed each, or a folder of studies.",
            "",
            "RUN...",
        ),
    ],
    *,
    into: Annotated[str, option("The record's folder.", "(required)", "PATH")],
    data_name: Annotated[
        str | None,
        option("What to write in place of the data's path.", "", "NAME"),
    ] = None,
    log: Annotated[
        UseAppendAction[tuple[str, ...]],
        option("A run's log, where its folder has none.", "(once a run)", "PATH"),
    ] = (),
    held_out: Annotated[
        bool, option("Runs judged by held-out training images: labelled so.")
    ] = False,
) -> None:
    """Gather finished runs that differ in their seed into a record, or studies.

    It holds summary.json, the recipe, the environment, curves, and every seed's
    metrics, result and log; a README.md that is there already stays as it is. Of
    studies it holds the tables and pictures as well.

    Examples:
      t2t record runs/mine runs/mine-seed1 runs/mine-seed2 --into records/mine
      t2t record runs/studies --into records/studies
      t2t record runs/tried --into records/tried --held-out --data-name path/to/cifar10
    """
    if not runs:
        raise UserError("No runs are named; give the folders of finished runs.")

    from pathlib import Path

    from t2t.lab.records.record import record as gather
    from t2t.lab.records.study_record import is_studies, record_studies

    places = [Path(run).expanduser() for run in runs]
    target = Path(into).expanduser()
    for place in places:
        check_kind(place, len(places))
    if is_studies(places[0]):
        if log:
            raise UserError("--log is for single runs; studies keep their logs.")
        studies = record_studies(
            places[0], target, data_name=data_name, held_out=held_out
        )
        names = [each["study"] for each in studies]
        kind = "study" if len(names) == 1 else "studies"
        print(f"{into}: the {kind} {', '.join(names)}")
        return
    summary = gather(
        places,
        target,
        data_name=data_name,
        held_out=held_out,
        logs=[Path(each).expanduser() for each in log],
    )
    told = ", ".join(f"{value:.2f}" for value in summary["top1"])
    print(f"{into}: {summary['recipe']}, top-1 {told} % (seeds {summary['seeds']})")


def check_kind(place: "Path", num_places: int) -> None:
    """Refuses studies among other runs, and one study without its runs."""
    from t2t.lab.records.study_record import is_studies, is_study

    if is_studies(place) and num_places > 1:
        raise UserError(
            f"{place} holds studies, which are a record of their own; name it alone."
        )
    if is_study(place):
        raise UserError(
            f"{place} is one study, without its runs; studies are recorded all at "
            f"once: t2t record {place.parent} --into PATH."
        )
