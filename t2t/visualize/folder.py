"""A folder of pictures, and the page that shows them."""

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.figure import Figure

from t2t.analysis.html_page import HtmlPage
from t2t.atomic import atomic_file
from t2t.visualize.data import ImageLook, ModelLook
from t2t.visualize.svg import as_svg


@dataclass
class Folder:
    """The page being written, and where its pictures go."""

    path: Path
    page: HtmlPage
    names: list[str] = field(default_factory=list)

    def add(self, drawn: list[tuple[str, Figure, str]]) -> None:
        """Writes figures (name, figure, caption) as PNG and adds them to the page."""
        drawings = []
        with warnings.catch_warnings():
            # Names of images may have letters that the font of the PNG lacks.
            warnings.filterwarnings("ignore", r"Glyph .* missing from")
            for name, figure, caption in drawn:
                drawings.append((as_svg(figure, name), caption))
                with atomic_file(self.path / f"{name}.png") as part:
                    figure.savefig(part, format="png", facecolor="white", dpi=150)
                self.names.append(f"{name}.png")
        self.page.drawings(drawings)


def slug(model: ModelLook, number: int) -> str:
    """The end of the names of a model's pictures."""
    words = re.sub(r"[^a-z0-9]+", "-", model.title.lower()).strip("-")
    return f"{number + 1}-{words[:40].strip('-')}"


def add_by_image(
    folder: Folder,
    models: Sequence[tuple[int, ModelLook]],
    name: str,
    draw: Callable[[ModelLook, ImageLook], Figure],
) -> None:
    """A drawing of every image for every model; models side by side."""
    rows = [
        [
            (
                f"{name}-{slug(model, n)}-image{number + 1}",
                draw(model, model.images[number]),
                f"{model.images[number].name}, {model.title}",
            )
            for n, model in models
        ]
        for number in range(len(models[0][1].images))
    ]
    if len(models) == 1:  # then images are side by side
        rows = [[drawing for row in rows for drawing in row]]
    for row in rows:
        folder.add(row)
