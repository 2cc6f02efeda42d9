"""`t2t features`: write the features of images."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    check_writable,
    option,
    run_code,
    warn,
    warn_skipped,
)
from t2t.data.decoding.headers import DEFAULT_MAX_PIXELS
from t2t.errors import UserError
from t2t.table_beside import OF_FEATURES, table_beside

if TYPE_CHECKING:
    from t2t.probing.features import Features


def features(
    weights: WeightsArgument,
    *,
    data: Annotated[
        str | None,
        option("Images, with labels or without.", "(default: the run's own)", "SOURCE"),
    ] = None,
    out: Annotated[
        str | None,
        option(
            "Write float32 features, and a .csv of names and labels next to them.",
            "",
            "FILE.npy",
        ),
    ] = None,
    picture: Annotated[
        str | None,
        option("Draw a t-SNE by class: a .png, .pdf or .svg.", "", "PATH"),
    ] = None,
    labels: LabelsOption = (),
    label_columns: LabelColumnsOption = None,
    label_pattern: LabelPatternOption = None,
    split: Annotated[
        str | None,
        option("val, test, train or all.", "(default: val, else all)", "SPLIT"),
    ] = None,
    num_images: Annotated[
        int | None, option("Number of images, drawn at random.", "(default: all)", "N")
    ] = None,
    seed: Annotated[int, option("Seed of draw and t-SNE.", "(default: 0)", "N")] = 0,
    batch_size: BatchSizeOption = 256,
    device: DeviceOption = None,
    precision: PrecisionOption = None,
    max_pixels: MaxPixelsOption = DEFAULT_MAX_PIXELS,
    model: ModelOption = None,
    code: CodeOption = (),
    json: JsonFlag = False,
) -> None:
    """Write the features of images to a file, or draw them.

    A feature is what the model's head reads: the class token, or the mean of the
    tokens, after the last norm.

    Examples:
      t2t features builtin --data photos/ --out features.npy
      t2t features runs/own --split train --out features.npy
      t2t features runs/own --data photos/ --picture tsne.png
    """
    if out is None and picture is None:
        raise UserError(
            "Say where to write: --out features.npy, --picture tsne.png, or both."
        )
    at_least(1, "--num-images", num_images)
    at_least(1, "--batch-size", batch_size)
    at_least(0, "--seed", seed)
    check_max_pixels(max_pixels)
    check_picture(picture)
    if out is not None:
        if not out.lower().endswith(".npy"):
            raise UserError(f"--out {out} must end in .npy.")
        file = Path(out).expanduser()
        for each in (file, table_beside(file, OF_FEATURES)):
            check_writable("--out", each)
    run_code(code)

    from t2t.probing.features import features as extract
    from t2t.probing.features import save_features
    from t2t.screen import print_json, show_progress

    with show_progress("extracting features") as progress:
        found = extract(
            weights,
            data,
            labels=labels,
            label_columns=label_columns,
            label_pattern=label_pattern,
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
    warn(*found.notes)
    warn_skipped(found.damaged)
    files = [] if out is None else [str(file) for file in save_features(found, out)]
    if picture is not None:
        from t2t.analysis.tsne_figure import draw_tsne

        drawn = draw_tsne(
            found.values.numpy(),
            found.labels.numpy(),
            found.readable_classes,
            picture,
            f"{found.model} ({weights}), {found.data} ({found.split})",
            seed,
        )
        files.append(str(drawn))
    if json:
        print_json(summary(found, weights, files))
    else:
        num, width = found.values.shape
        classes = f"{len(found.classes)} classes" if found.classes else "no labels"
        print(
            f"{num:,} features of width {width}, of {found.data} ({found.split}, "
            f"{classes}), by {found.model}: {', '.join(files)}"
        )


def summary(found: "Features", weights: str, files: list[str]) -> dict[str, object]:
    """The summary of the written features as JSON."""
    num, width = found.values.shape
    return {
        "weights": weights,
        "model": found.model,
        "data": found.data,
        "split": found.split,
        "num_images": num,
        "width": width,
        "classes": list(found.classes),
        "files": files,
        "damaged": list(found.damaged),
        "notes": list(found.notes),
    }
