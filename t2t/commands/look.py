"""`t2t look`: show what models see in images."""

import sys
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, UseAppendAction

from t2t.commands.options import (
    WEIGHTS,
    CodeOption,
    DeviceOption,
    ImageSizeOption,
    JsonFlag,
    MaxPixelsOption,
    ModelOption,
    check_max_pixels,
    option,
    parse_size,
    run_code,
    warn,
)
from t2t.commands.weights_and_images import EMPTY_LIST, check_images, split_inputs
from t2t.data.decoding.headers import DEFAULT_MAX_PIXELS
from t2t.errors import UserError


def look(
    inputs: Annotated[
        Positional[tuple[str, ...]],
        option(
            f"{WEIGHTS} (default: builtin); then image files, folders, or - for paths "
            "on standard input.",
            "",
            "[WEIGHTS] IMAGE...",
        ),
    ],
    *,
    compare: Annotated[
        UseAppendAction[tuple[str, ...]],
        option(
            "Show this model, too: a run or weights as above.",
            "(repeatable)",
            "WEIGHTS",
        ),
    ] = (),
    out: Annotated[
        str,
        option(
            "Folder for the pictures and the report: a new one, or of an earlier look.",
            "(default: look)",
            "PATH",
        ),
    ] = "look",
    image_size: ImageSizeOption = None,
    model: ModelOption = None,
    code: CodeOption = (),
    device: DeviceOption = None,
    max_pixels: MaxPixelsOption = DEFAULT_MAX_PIXELS,
    json: JsonFlag = False,
) -> None:
    """Show what models see in images: tokens, feature maps, attention, positions.

    Examples:
      t2t look cat.jpg
      t2t look runs/own cat.jpg dog.jpg
      t2t look runs/own cat.jpg --compare runs/vit --compare resnet50
      t2t look deit_small_patch16_224 photos/ --image-size 320x480 --out deit
    """
    check_max_pixels(max_pixels)
    size = None if image_size is None else parse_size(image_size)
    weights, words = split_inputs(inputs)
    check_images(inputs, words, ", or by --compare")
    folder = Path(out).expanduser()
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--out {out} is a file; name a folder.")
    run_code(code)

    from t2t.data.decoding.damage import DamagedImage
    from t2t.screen import print_json, print_page, show_progress
    from t2t.serving.inputs import find_images
    from t2t.visualize.look import look as look_at
    from t2t.visualize.printing import look_table
    from t2t.visualize.report import check_folder

    check_folder(folder)
    found = list(find_images(words, sys.stdin))
    images = [each for each in found if not isinstance(each, DamagedImage)]
    unread = [each for each in found if isinstance(each, DamagedImage)]
    for each in unread:
        warn(f"{each.name} was skipped: {each.reason}.")
    if not images:
        raise UserError("No image could be read." if unread else EMPTY_LIST)
    with show_progress("looking") as progress:
        seen = look_at(
            weights,
            images,
            compare=compare,
            model=model,
            image_size=size,
            device=device,
            max_pixels=max_pixels,
            progress=progress,
        )
    for looked in seen.models:
        warn(*(f"{looked.title}: {note}" for note in looked.notes))
    warn(*seen.skipped)
    report = seen.write(folder)
    if json:
        print_json({**seen.as_json(), "report": str(report)})
    else:
        print_page(lambda width: look_table(seen))
        print(f"\nReport: {report}")
    if unread or seen.skipped:
        raise SystemExit(1)
