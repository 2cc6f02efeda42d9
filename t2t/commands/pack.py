"""`t2t pack`: pack images into tar shards."""

import shlex
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from t2t.commands.options import (
    CodeOption,
    LabelColumnsOption,
    LabelPatternOption,
    LabelsOption,
    MaxDamagedOption,
    MaxPixelsOption,
    at_least,
    check_max_pixels,
    option,
    run_code,
)
from t2t.data.decoding.damage import DEFAULT_MAX_DAMAGED, damage_limit
from t2t.data.decoding.headers import DEFAULT_MAX_PIXELS


def pack(
    source: Annotated[
        Positional[str],
        option("Images: a folder, files or a data set's name.", "", "SOURCE"),
    ],
    destination: Annotated[
        Positional[str],
        option(
            "Folder for the shards: a new one, or of an interrupted pack.",
            "",
            "DEST",
        ),
    ],
    *,
    labels: LabelsOption = (),
    label_columns: LabelColumnsOption = None,
    label_pattern: LabelPatternOption = None,
    short_side: Annotated[
        int,
        option(
            "Shrink larger images to this short side; 0 keeps their size.",
            "(default: 256)",
            "PIXELS",
        ),
    ] = 256,
    quality: Annotated[
        int, option("JPEG quality of shrunk images.", "(default: 90)", "N")
    ] = 90,
    shard_size: Annotated[
        int, option("Images per shard.", "(default: 4096)", "N")
    ] = 4096,
    workers: Annotated[
        int | None, option("Worker threads.", "(default: all cores)", "N")
    ] = None,
    unlabelled: Annotated[
        bool,
        option("Allow images without labels; labels are kept if all have one."),
    ] = False,
    code: CodeOption = (),
    max_pixels: MaxPixelsOption = DEFAULT_MAX_PIXELS,
    max_damaged: MaxDamagedOption = DEFAULT_MAX_DAMAGED,
) -> None:
    """Shrink images and pack them into tar shards, which load faster.

    Examples:
      t2t pack path/to/imagenet packed/ --short-side 256
      t2t pack photos/ packed/
      t2t pack unsorted/ packed/ --unlabelled
    """
    at_least(1, "--workers", workers)
    check_max_pixels(max_pixels)
    damage_limit(max_damaged, 0)
    run_code(code)

    from rich.text import Text

    from t2t.data.label_config import label_config
    from t2t.data.packing.pack import pack as start
    from t2t.screen import print_page, show_progress

    with show_progress("packing") as progress:
        done = start(
            source,
            destination,
            short_side=short_side or None,
            quality=quality,
            shard_size=shard_size,
            num_workers=workers,
            max_pixels=max_pixels,
            max_damaged=max_damaged,
            labels=not unlabelled,
            label_config=label_config(labels, label_columns, label_pattern),
            progress=progress,
        )
    for note in done.notes:
        print(note)
    for damaged in done.damaged:
        print(f"Skipped a damaged image: {damaged}.")
    print_page(
        lambda width: Text(
            f"{done.num_images:,} images in {done.num_shards} shards: "
            f"{done.bytes_before / 1e6:,.1f} MB → {done.bytes_after / 1e6:,.1f} MB\n"
            f"{how_to_train(done.folder, done.is_labelled)}"
        )
    )


def how_to_train(folder: Path, is_labelled: bool) -> str:
    """The command that trains on a pack."""
    task = "" if is_labelled else " --set task=TASK, a task that needs no labels"
    return f"Train on them: t2t train --data {shlex.quote(str(folder))}{task}"
