"""`t2t ship`: export a run's model at half precision with a model card."""

from typing import Annotated

from tyro.conf import Positional

from t2t.commands.options import CodeOption, DeviceOption, option, run_code
from t2t.errors import UserError


def ship(
    run: Annotated[Positional[str], option("A finished run folder.", "", "RUN")],
    *,
    out: Annotated[str, option("Folder for model and card.", "(required)", "PATH")],
    data: Annotated[
        str | None,
        option(
            "Images to evaluate on.", "(default: the run's validation images)", "SOURCE"
        ),
    ] = None,
    data_name: Annotated[
        str | None,
        option("Name of the data in the card.", "(default: its path)", "NAME"),
    ] = None,
    megabytes: Annotated[
        float, option("Largest size allowed, in MB.", "(default: 10)", "N")
    ] = 10.0,
    code: CodeOption = (),
    device: DeviceOption = None,
) -> None:
    """Write a run's model at half precision, with a model card.

    The accuracies in the card are measured with the written file.

    Examples:
      t2t ship runs/own --out mine/
      t2t ship runs/best --out t2t/builtin --data path/to/cifar10 --data-name cifar10
    """
    if not megabytes > 0:
        raise UserError(f"--megabytes {megabytes:g} is too small: give more than 0.")

    run_code(code)

    from pathlib import Path

    from t2t.lab.ship import ship as write_model

    file, report = write_model(
        Path(run).expanduser(),
        Path(out).expanduser(),
        data=data,
        data_name=data_name,
        most_megabytes=megabytes,
        device=device,
    )
    print(
        f"{file}: {file.stat().st_size / 1e6:.2f} MB, top-1 {report.score.top1:.2f} % "
        f"on {report.score.num_images:,} images; with MODEL_CARD.md."
    )
