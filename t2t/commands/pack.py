"""Packing: any data into shards that are fast to read."""

from typing import Annotated

from tyro.conf import Positional

from t2t.commands.options import MaxPixelsOption, at_least, check_max_pixels, option
from t2t.data.decoding.headers import DEFAULT_MAX_PIXELS


def pack(
    source: Annotated[Positional[str], option("Any data source.", "", "SOURCE")],
    destination: Annotated[Positional[str], option("A new folder.", "", "DEST")],
    *,
    short_side: Annotated[
        int,
        option(
            "Larger images are shrunk to this; 0 keeps all.", "(default: 256)", "PIXELS"
        ),
    ] = 256,
    quality: Annotated[
        int, option("JPEG quality of shrunk images.", "(default: 90)", "N")
    ] = 90,
    shard_size: Annotated[
        int, option("Images in a shard.", "(default: 4096)", "N")
    ] = 4096,
    workers: Annotated[
        int | None, option("Threads.", "(default: all cores)", "N")
    ] = None,
    max_pixels: MaxPixelsOption = DEFAULT_MAX_PIXELS,
) -> None:
    """Shrink and pack any data into tar shards that are fast to read.

    Examples:
      t2t pack path/to/imagenet packed/ --short-side 256
      t2t pack photos/ packed/
    """
    if workers is not None:
        at_least(1, "--workers", workers)
    check_max_pixels(max_pixels)
    import shlex

    from rich.text import Text

    from t2t.data.packing.pack import pack as start
    from t2t.screen import counting, print_page

    with counting("packing") as progress:
        done = start(
            source,
            destination,
            short_side=short_side or None,
            quality=quality,
            shard_size=shard_size,
            num_workers=workers,
            max_pixels=max_pixels,
            progress=progress,
        )
    for note in done.notes:
        print(note)
    for damaged in done.damaged:
        print(f"Left out, since it is damaged: {damaged}.")
    print_page(
        lambda width: Text(
            f"{done.num_images:,} images in {done.num_shards} shards: "
            f"{done.bytes_before / 1e6:,.1f} MB → {done.bytes_after / 1e6:,.1f} MB\n"
            f"Train on them: t2t train --data {shlex.quote(str(done.folder))}"
        )
    )
