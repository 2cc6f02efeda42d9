"""`t2t export`: write a model for other programs."""

from typing import Annotated, Literal

from tyro.conf import Positional

from t2t.commands.options import (
    WEIGHTS,
    CodeOption,
    ImageSizeOption,
    ModelOption,
    at_least,
    option,
    parse_size,
    run_code,
    warn,
)
from t2t.commands.weights_and_images import names_images
from t2t.errors import UserError

To = Literal["onnx", "torch-export", "safetensors", "timm"]


def export(
    inputs: Annotated[
        Positional[tuple[str, ...]],
        option(
            f"{WEIGHTS}; then images to check the file on (default: the run's "
            "validation images).",
            "",
            "WEIGHTS [IMAGE...]",
        ),
    ],
    *,
    to: Annotated[
        To,
        option("onnx, torch-export, safetensors, or timm: a folder.", "(required)"),
    ],
    out: Annotated[
        str | None,
        option("File to write.", "(default: here, named like the weights)", "PATH"),
    ] = None,
    image_size: ImageSizeOption = None,
    dynamic_image_size: Annotated[
        bool, option("Export a graph for any image size.")
    ] = False,
    with_preprocessing: Annotated[
        bool, option("Put normalisation and softmax into the graph.")
    ] = False,
    int8: Annotated[bool, option("Quantize an ONNX file's weights to int8.")] = False,
    data: Annotated[
        str | None,
        option("Labelled images to check and evaluate on.", "", "SOURCE"),
    ] = None,
    val_images: Annotated[
        int, option("Images to measure accuracy on.", "(default: 1000)", "N")
    ] = 1000,
    license: Annotated[
        str,
        option("License in the model card of timm.", "(default: unknown)", "NAME"),
    ] = "unknown",
    model: ModelOption = None,
    code: CodeOption = (),
) -> None:
    """Export a model to ONNX, torch.export, safetensors or timm.

    The file is compared with PyTorch on real images; if it differs, nothing is written.

    Examples:
      t2t export runs/own --to onnx
      t2t export builtin cat.jpg --to onnx --with-preprocessing --out cifar10.onnx
      t2t export runs/own --to onnx --int8 --data photos/
      t2t export runs/own --to timm --license apache-2.0
    """
    at_least(1, "--val-images", val_images)
    if not inputs:
        raise UserError("No weights are given: t2t export runs/own --to onnx.")
    if names_images(inputs[0]):
        raise UserError(
            f"{inputs[0]} is not weights: give those first, as in t2t export runs/own "
            f"{inputs[0]} --to {to}."
        )
    size = None if image_size is None else parse_size(image_size)
    run_code(code)

    from t2t.deployment.export import export as write
    from t2t.screen import show_progress

    with show_progress("exporting") as progress:
        report = write(
            inputs[0],
            to=to,
            out=out,
            images=inputs[1:],
            data=data,
            model=model,
            image_size=size,
            dynamic_image_size=dynamic_image_size,
            with_preprocessing=with_preprocessing,
            int8=int8,
            val_images=val_images,
            license=license,
            progress=progress,
        )
    warn(*report.notes)
    whole = "The float32 graph" if int8 else "It"
    print(f"{report.path}: {report.megabytes:.1f} MB. {whole} {report.parity}.")
    if report.accuracy:
        print(report.accuracy)
