"""`t2t push`: upload a model to the Hugging Face hub."""

from typing import Annotated

from tyro.conf import Positional

from t2t.commands.options import (
    WEIGHTS,
    CodeOption,
    ModelOption,
    option,
    run_code,
    warn,
)
from t2t.errors import UserError


def push(
    inputs: Annotated[
        Positional[tuple[str, ...]],
        option(
            f"{WEIGHTS}, or a folder of `t2t export --to timm`; its name on the hub; "
            "then images to check the upload on.",
            "",
            "WEIGHTS OWNER/NAME [IMAGE...]",
        ),
    ],
    *,
    private: Annotated[
        bool, option("Upload to a private repository; never to a public one.")
    ] = False,
    dry_run: Annotated[
        bool, option("Only list what would be uploaded; needs no network.")
    ] = False,
    data: Annotated[
        str | None,
        option("Labelled images to check and evaluate on.", "", "SOURCE"),
    ] = None,
    license: Annotated[
        str, option("License in the model card.", "(default: unknown)", "NAME")
    ] = "unknown",
    model: ModelOption = None,
    code: CodeOption = (),
) -> None:
    """Upload a model to the Hugging Face hub, with a model card.

    Load it by timm.create_model("hf-hub:OWNER/NAME", pretrained=True).

    Examples:
      t2t push runs/own anna/my-flowers --dry-run
      t2t push runs/own anna/my-flowers --license apache-2.0 --private
    """
    if len(inputs) < 2:
        raise UserError(
            "Give weights and a name on the hub: t2t push runs/own anna/my-flowers."
        )
    run_code(code)

    from t2t.deployment.push import push as upload
    from t2t.formatting import format_bytes

    report = upload(
        inputs[0],
        inputs[1],
        private=private,
        dry_run=dry_run,
        images=inputs[2:],
        data=data,
        license=license,
        model=model,
    )
    for name, size in report.files:
        print(f"{name}  {format_bytes(size)}")
    if report.is_dry_run:
        warn(f"Nothing was uploaded; it would be at {report.url}.")
    else:
        print(report.url)
