"""`t2t record`: gather finished runs into a record."""

from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, UseAppendAction

from t2t.commands.options import CodeOption, option, run_code
from t2t.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path


def record(
    runs: Annotated[
        Positional[tuple[str, ...]],
        option(
            "Finished runs of one recipe with different seeds, or a folder of studies.",
            "",
            "RUN...",
        ),
    ],
    *,
    out: Annotated[str, option("The record's folder.", "(required)", "PATH")],
    data_name: Annotated[
        str | None,
        option("Name to write instead of the data's path.", "", "NAME"),
    ] = None,
    log: Annotated[
        UseAppendAction[tuple[str, ...]],
        option("Log of a run whose folder has none.", "(once per run)", "PATH"),
    ] = (),
    held_out: Annotated[
        bool, option("Allow runs evaluated on held-out training images; labels them.")
    ] = False,
    code: CodeOption = (),
) -> None:
    """Gather finished runs that differ in their seed, or studies, into a record.

    A record holds summary.json, the recipe, the environment, curves, and the metrics,
    result and log of every seed; for studies also their tables and pictures. An
    existing README.md is kept.

    Examples:
      t2t record runs/own runs/own-seed1 runs/own-seed2 --out records/mine
      t2t record runs/studies --out records/studies
      t2t record runs/tried --out records/tried --held-out --data-name path/to/cifar10
    """
    if not runs:
        raise UserError("No runs are given; name the folders of finished runs.")

    run_code(code)

    from pathlib import Path

    from t2t.lab.records.record import record as gather
    from t2t.lab.records.study_record import is_studies, record_studies
    from t2t.tasks.registry import primary_metric
    from t2t.training.saved_run import read_recipe, read_result

    folders = [Path(run).expanduser() for run in runs]
    target = Path(out).expanduser()
    for folder in folders:
        check_kind(folder, len(folders))
    if is_studies(folders[0]):
        if log:
            raise UserError("--log is for single runs; leave it out for studies.")
        studies = record_studies(
            folders[0], target, data_name=data_name, held_out=held_out
        )
        names = [each["study"] for each in studies]
        kind = "study" if len(names) == 1 else "studies"
        print(f"{out}: the {kind} {', '.join(names)}")
        return
    summary = gather(
        folders,
        target,
        data_name=data_name,
        held_out=held_out,
        logs=[Path(each).expanduser() for each in log],
    )
    metric = primary_metric(
        read_recipe(folders[0]).task, read_result(folders[0])["metric"]
    )
    values = ", ".join(f"{value:.{metric.digits}f}" for value in summary[metric.name])
    print(
        f"{out}: {summary['recipe']}, {metric.label} {values}{metric.unit} "
        f"(seeds {summary['seeds']})"
    )


def check_kind(folder: "Path", num_folders: int) -> None:
    """Raises an error for studies beside other runs, and for one study alone."""
    from t2t.lab.records.study_record import is_studies, is_study

    if is_studies(folder) and num_folders > 1:
        raise UserError(
            f"{folder} holds studies, which need a record of their own; give it alone."
        )
    if is_study(folder):
        raise UserError(
            f"{folder} is one study without its runs; record all studies at once: "
            f"t2t record {folder.parent} --out PATH."
        )
