"""The folder of a look: pictures, numbers and one self-contained page."""

import errno
import json
import os
import re
from pathlib import Path

from t2t.analysis.html_page import HtmlPage
from t2t.atomic import write_atomically
from t2t.errors import UserError
from t2t.visualize.data import Look
from t2t.visualize.folder import Folder
from t2t.visualize.sections import SECTIONS

REPORT = "report.html"
NUMBERS = "look.json"


def write_report(look: Look, path: Path) -> Path:
    """Writes all pictures, `look.json` and `report.html`, which comes last."""
    make_folder(path)
    try:
        return write_files(look, path)
    except OSError as error:
        raise unwritable(path, error.strerror) from error


def write_files(look: Look, path: Path) -> Path:
    """Writes them into a folder that is empty or holds an earlier look."""
    before = earlier_pictures(path)
    if before is None:  # an interrupted look marks the folder as its own, too
        write_atomically(path / NUMBERS, b'{"pictures": []}')
    folder = Folder(path, HtmlPage(title_of(look), introduction(look)))
    add_overview(folder, look)
    for add in SECTIONS:
        add(folder, look.models)
    numbers = {**look.as_json(), "pictures": folder.names}
    text = json.dumps(numbers, indent=1, ensure_ascii=False)
    write_atomically(path / NUMBERS, text.encode())
    report = folder.page.write(path / REPORT)
    for name in (before or set()) - {*folder.names}:
        (path / name).unlink(missing_ok=True)
    return report


def title_of(look: Look) -> str:
    """The title of the page."""
    *others, last = (each.title for each in look.models)
    return f"What {', '.join(others)} and {last} see" if others else f"What {last} sees"


def earlier_pictures(path: Path) -> set[str] | None:
    """The pictures that an earlier look wrote into the folder; None without one."""
    try:
        names = json.loads((path / NUMBERS).read_text())["pictures"]
        return {each for each in names if re.fullmatch(r"[a-z0-9-]+\.png", each)}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def make_folder(path: Path) -> None:
    """Makes the folder; raises an error if it cannot be written."""
    check_folder(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(path, error.strerror) from error


def check_folder(path: Path) -> None:
    """Raises an error if the folder cannot be written or is not ours; makes nothing."""
    absolute = path.absolute()
    existing = next(
        each for each in (absolute, *absolute.parents) if os.path.lexists(each)
    )
    if not existing.is_dir():
        raise unwritable(path, os.strerror(errno.ENOTDIR))
    if not os.access(existing, os.R_OK | os.W_OK | os.X_OK):
        raise unwritable(path, os.strerror(errno.EACCES))
    names = os.listdir(path) if path.is_dir() else []
    has_others = any(not name.startswith(".") for name in names)
    if has_others and earlier_pictures(path) is None:
        raise UserError(
            f"The folder {path} holds other files, which a report could replace: name "
            "a new or empty folder, or that of an earlier look."
        )


def unwritable(path: Path, reason: str | None) -> UserError:
    """The error for a folder that cannot be written."""
    return UserError(f"The folder {path} cannot be written ({reason}); name another.")


def introduction(look: Look) -> str:
    """The first paragraph of the page."""
    num_drawn = len(look.models[0].images)
    images = "one image" if look.num_images == 1 else f"{look.num_images:,} images"
    text = f"Measured on {images}."
    if num_drawn < look.num_images:
        text += f" Numbers are over all of them; pictures show the first {num_drawn}."
    return text + " All pictures are also PNG files beside this page."


def add_overview(folder: Folder, look: Look) -> None:
    """A table of the models, and what is left out."""
    folder.page.section("Models")
    folder.page.table(
        ("weights", "model", "parameters", "image", "dead channels"),
        [
            (
                each.weights,
                each.model,
                f"{each.num_parameters / 1e6:.2f} M",
                f"{each.image_size[0]}×{each.image_size[1]}",
                f"{each.num_dead:,} of {each.num_channels:,}",
            )
            for each in look.models
        ],
    )
    add_predictions(folder, look)
    for each in look.models:
        for note in each.notes:
            folder.page.paragraph(f"{each.title}: {note}", quiet=True)
    for sentence in look.skipped:
        folder.page.paragraph(f"Skipped: {sentence}", quiet=True)


def add_predictions(folder: Folder, look: Look) -> None:
    """A table of the best class of every drawn image, a column per model."""
    by_model = [[image.prediction for image in each.images] for each in look.models]
    if not any(map(any, by_model)):
        return
    folder.page.paragraph("The most probable class of each image, and its probability:")
    folder.page.table(
        ("image", *(each.title for each in look.models)),
        [
            (image.name, *(found or "–" for found in predictions))
            for image, *predictions in zip(
                look.models[0].images, *by_model, strict=True
            )
        ],
    )
