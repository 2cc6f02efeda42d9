"""`t2t neighbors`: find the nearest images of an image."""

import sys
from typing import Annotated

from tyro.conf import Positional

from t2t.commands.options import (
    BatchSizeOption,
    CodeOption,
    DeviceOption,
    JsonFlag,
    LabelColumnsOption,
    LabelPatternOption,
    LabelsOption,
    MaxPixelsOption,
    ModelOption,
    PrecisionOption,
    WeightsArgument,
    at_least,
    check_max_pixels,
    check_picture,
    option,
    run_code,
    warn,
    warn_skipped,
)
from t2t.commands.weights_and_images import EMPTY_LIST
from t2t.data.decoding.headers import DEFAULT_MAX_PIXELS
from t2t.errors import UserError


def neighbors(
    weights: WeightsArgument,
    images: Annotated[
        Positional[tuple[str, ...]],
        option("Image files, folders, or - for a list of paths.", "", "IMAGE..."),
    ] = (),
    *,
    data: Annotated[
        str | None,
        option("The images to search.", "(default: the run's own)", "SOURCE"),
    ] = None,
    labels: LabelsOption = (),
    label_columns: LabelColumnsOption = None,
    label_pattern: LabelPatternOption = None,
    top: Annotated[int, option("Nearest images of each.", "(default: 8)", "N")] = 8,
    picture: Annotated[
        str | None,
        option(
            "Draw the images and their nearest ones: a .png, .pdf or .svg.", "", "PATH"
        ),
    ] = None,
    split: Annotated[
        str | None,
        option("train, val, test or all.", "(default: train, else all)", "SPLIT"),
    ] = None,
    num_images: Annotated[
        int | None,
        option("Images to search, drawn at random.", "(default: all)", "N"),
    ] = None,
    seed: Annotated[int, option("Seed of the draw.", "(default: 0)", "N")] = 0,
    batch_size: BatchSizeOption = 256,
    device: DeviceOption = None,
    precision: PrecisionOption = None,
    max_pixels: MaxPixelsOption = DEFAULT_MAX_PIXELS,
    model: ModelOption = None,
    code: CodeOption = (),
    json: JsonFlag = False,
) -> None:
    """Find the nearest images of an image, by the cosine similarity of features.

    Examples:
      t2t neighbors builtin cat.jpg --data photos/
      t2t neighbors runs/own cat.jpg dog.jpg --picture nearest.png
      t2t neighbors runs/own cat.jpg --data photos/ --top 20 --json
    """
    if not images:
        raise UserError(
            f"No image is given beside {weights}: t2t neighbors {weights} cat.jpg "
            "--data photos/."
        )
    at_least(1, "--top", top)
    at_least(1, "--num-images", num_images)
    at_least(1, "--batch-size", batch_size)
    at_least(0, "--seed", seed)
    check_max_pixels(max_pixels)
    check_picture(picture)
    run_code(code)

    from t2t.probing.neighbors import MAX_DRAWN
    from t2t.probing.neighbors import neighbors as search
    from t2t.screen import print_report, show_progress
    from t2t.serving.inputs import readable_images

    paths = list(readable_images(images, sys.stdin))
    if not paths:
        raise UserError(EMPTY_LIST)
    with show_progress("extracting features") as progress:
        report = search(
            weights,
            paths,
            data,
            labels=labels,
            label_columns=label_columns,
            label_pattern=label_pattern,
            top=top,
            split=split,
            num_images=num_images,
            seed=seed,
            model=model,
            batch_size=batch_size,
            device=device,
            precision=precision,
            max_pixels=max_pixels,
            progress=progress,
        )
    warn(*report.notes)
    warn_skipped(report.damaged)
    print_report(report, as_json=json)
    if picture is not None:
        warn(f"Picture: {report.draw(picture)}")
        if len(report.found) > MAX_DRAWN:
            warn(f"It shows the first {MAX_DRAWN} of {len(report.found):,} images.")
