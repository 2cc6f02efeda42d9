"""The folder of a look: pictures, numbers and one self-contained page."""

import errno
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.figure import Figure

from t2t.analysis.feature_maps import DEAD_BELOW, OUTSIZED_ABOVE
from t2t.analysis.html_page import HtmlPage
from t2t.atomic import atomic_file, write_atomically
from t2t.errors import UserError
from t2t.visualize import figures
from t2t.visualize.figures import aspect_of
from t2t.visualize.look import MAX_DRAWN, Look, ModelLook
from t2t.visualize.svg import as_svg

REPORT = "report.html"


@dataclass
class Folder:
    """The page under way, and where its pictures go."""

    path: Path
    page: HtmlPage
    names: list[str] = field(default_factory=list)

    def add(
        self,
        drawn: list[tuple[str, Figure, str]],
        *,
        width: int = 520,
        least: int = 460,
    ) -> None:
        """Writes figures (name, figure, caption) as PNG and adds them to the page."""
        drawings = []
        for name, figure, caption in drawn:
            drawings.append((as_svg(figure, name), caption))
            with atomic_file(self.path / f"{name}.png") as part:
                figure.savefig(part, format="png", facecolor="white", dpi=150)
            self.names.append(f"{name}.png")
        self.page.drawings(drawings, width=width, least=least)


def write_report(look: Look, path: Path) -> Path:
    """Writes all pictures, `look.json` and `report.html`, which comes last."""
    make_folder(path)
    names = ", ".join(each.title for each in look.models)
    folder = Folder(path, HtmlPage(f"What {names} sees", introduction(look)))
    add_overview(folder, look)
    for add in (add_splits, add_features, add_heads, add_rollouts, add_distances):
        add(folder, look.models)
    for add in (add_norms, add_positions, add_filters):
        add(folder, look.models)
    numbers = json.dumps(look.as_json(), indent=1, ensure_ascii=False)
    write_atomically(path / "look.json", numbers.encode())
    return folder.page.write(path / REPORT)


def make_folder(path: Path) -> None:
    """Makes the folder; raises an error if it cannot be written."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise UserError(
            f"The folder {path} cannot be written ({error.strerror}); name another."
        ) from error


def introduction(look: Look) -> str:
    """What the page shows, in a paragraph."""
    num_drawn = len(look.models[0].images)
    images = "one image" if look.num_images == 1 else f"{look.num_images:,} images"
    text = f"Measured on {images}."
    if num_drawn < look.num_images:
        text += f" Numbers are over all of them; pictures show the first {num_drawn}."
    return text + " All pictures are also PNG files beside this page."


def slug(model: ModelLook, number: int) -> str:
    """The end of the names of a model's pictures."""
    words = re.sub(r"[^a-z0-9]+", "-", model.title.lower()).strip("-")
    return f"{number + 1}-{words[:40].strip('-')}"


def add_overview(folder: Folder, look: Look) -> None:
    """A table of the models, and what is left out."""
    folder.page.section("Models")
    folder.page.table(
        ("weights", "model", "parameters", "image", "dead channels", "predictions"),
        [
            (
                each.weights,
                each.model,
                f"{each.num_parameters / 1e6:.2f} M",
                f"{each.image_size[0]}×{each.image_size[1]}",
                f"{each.num_dead:,} of {each.num_channels:,}",
                "; ".join(
                    f"{image.name}: {image.prediction}"
                    for image in each.images
                    if image.prediction
                )
                or "–",
            )
            for each in look.models
        ],
    )
    for each in look.models:
        for note in each.notes:
            folder.page.paragraph(f"{each.title}: {note}", quiet=True)
    for sentence in look.skipped:
        folder.page.paragraph(f"Skipped: {sentence}", quiet=True)


def add_splits(folder: Folder, models: tuple[ModelLook, ...]) -> None:
    """The image through every split."""
    folder.page.section(
        "The image through every split",
        "Tokens after each split and after the last block; of a CNN, its stages. Their "
        "first three principal components are red, green and blue: tokens of similar "
        "colour are similar. Within a column, a colour means the same for all images.",
    )
    folder.add(
        [
            (f"splits-{slug(each, n)}", figures.draw_splits(each.images), each.title)
            for n, each in enumerate(models)
        ]
    )


def add_features(folder: Folder, models: tuple[ModelLook, ...]) -> None:
    """Feature maps by layer, and dead channels."""
    folder.page.section(
        "Feature maps and dead channels",
        "A row is a layer, a panel one of its channels, evenly spaced and not selected. "
        "All panels share one scale: the difference from the channel's mean over the "
        "image, in units of the standard deviation of the layer's median channel.",
    )
    folder.page.paragraph(
        "A red frame is a dead channel: its standard deviation over all places of all "
        f"images is at most {100 * DEAD_BELOW:g} % of the median channel's. An orange "
        "frame is an outsized channel: the root mean square of its values is more than "
        f"{OUTSIZED_ABOVE:g} times the median channel's."
    )
    for number in range(min(MAX_DRAWN, len(models[0].images))):
        folder.add(
            [
                (
                    f"features-{slug(each, n)}-image{number + 1}",
                    figures.draw_features(each.images[number], each.channels),
                    f"{each.images[number].name}, {each.title}",
                )
                for n, each in enumerate(models)
                if each.channels
            ]
        )
    folder.add(
        [
            (
                "dead-channels",
                figures.draw_dead(models),
                "Left: dead channels by layer. Right: a line per layer, its channels "
                "sorted by their standard deviation.",
            )
        ],
        width=640,
        least=560,
    )
    for each in models:
        folder.page.paragraph(f"{each.title}: channels by layer")
        folder.page.table(
            ("layer", "channels", "dead", "outsized", "least std", "largest std"),
            [
                (
                    layer.name,
                    f"{len(layer.std):,}",
                    int(layer.dead.sum()),
                    int(layer.outsized.sum()),
                    f"{float(layer.relative_std.min()):.3g}",
                    f"{float(layer.relative_std.max()):.3g}",
                )
                for layer in each.channels
            ],
        )
    folder.page.paragraph("Standard deviations are relative to the median channel's.")


def add_heads(folder: Folder, models: tuple[ModelLook, ...]) -> None:
    """Attention maps per head and layer."""
    with_heads = [(n, each) for n, each in enumerate(models) if each.images[0].heads]
    folder.page.section("Attention by layer and head")
    if not with_heads:
        folder.page.paragraph("None of these models has attention maps.")
        return
    kinds = {
        "from_output": "from what the model's head reads: the class token, or the mean "
        "over all tokens where it reads those",
        "from_middle": "from the token in the middle of the image",
    }
    folder.page.paragraph(
        "Each panel is where one attention head looks, relative to the mean over the "
        f"image: 1 is the share of a token if all had the same, and {figures.HEADS_UP_TO:g} "
        "or more is the brightest colour."
    )
    for kind, words in kinds.items():
        folder.page.paragraph(f"Attention {words}.")
        for number in range(len(models[0].images)):
            folder.add(
                [
                    (
                        f"attention-{kind.replace('_', '-')}-{slug(each, n)}"
                        f"-image{number + 1}",
                        figures.draw_heads(
                            each.images[number].heads,
                            kind,
                            aspect_of(each.images[number].pixels),
                        ),
                        f"{each.images[number].name}, {each.title}",
                    )
                    for n, each in with_heads
                ],
                width=400,
                least=360,
            )


def add_rollouts(folder: Folder, models: tuple[ModelLook, ...]) -> None:
    """Attention rollout over the images."""
    shown = [(n, each) for n, each in enumerate(models) if each.images[0].rollouts]
    folder.page.section("Attention rollout")
    if not shown:
        folder.page.paragraph(
            "None of these models has an attention map in every block."
        )
        return
    folder.page.paragraph(
        "The attention of the blocks multiplied together, from what the head reads back "
        "to the image: heads are averaged, and the skip counts as half of each block. "
        f"Relative to the mean; {figures.ROLLOUT_UP_TO:g} or more is the brightest."
    )
    folder.add(
        [
            (f"rollout-{slug(each, n)}", figures.draw_rollouts(each.images), each.title)
            for n, each in shown
        ]
    )


def add_distances(folder: Folder, models: tuple[ModelLook, ...]) -> None:
    """Mean attention distance per head and layer."""
    folder.page.section("Mean attention distance")
    if not any(each.distances for each in models):
        folder.page.paragraph("None of these models has attention maps.")
        return
    folder.page.paragraph(
        "A dot is a head: the distance in pixels from a token to the tokens it attends "
        "to, weighted by attention; the mean over tokens and images. The dashed line is "
        "attention to all tokens alike, so heads below it look nearby."
    )
    caption = "By layer and head."
    folder.add(
        [("attention-distance", figures.draw_distances(models), caption)], width=640
    )


def add_norms(folder: Folder, models: tuple[ModelLook, ...]) -> None:
    """Token norms by layer."""
    folder.page.section(
        "Token norms",
        "The length (L2 norm) of the tokens by layer: the mean and, shaded, the 5th to "
        "95th percentile over tokens and images. A few tokens far longer than the rest "
        "hold global information instead of their patch.",
    )
    caption = "On a logarithmic scale."
    folder.add([("token-norms", figures.draw_norms(models), caption)], width=640)


def add_positions(folder: Folder, models: tuple[ModelLook, ...]) -> None:
    """Similarity of positions."""
    folder.page.section(
        "Positions",
        "A panel per token: the cosine similarity of its position embedding to those of "
        "all tokens. Neighbours that are alike show that the model knows the plane.",
    )
    for n, each in enumerate(models):
        if each.positions is None:
            folder.page.paragraph(f"{each.title} has no table of positions.")
            continue
        figure = figures.draw_positions(each.positions)
        caption = f"{each.title}. {each.positions.about}"
        folder.add([(f"positions-{slug(each, n)}", figure, caption)], width=480)


def add_filters(folder: Folder, models: tuple[ModelLook, ...]) -> None:
    """First-layer filters."""
    folder.page.section(
        "First-layer filters",
        "The filters of the largest norm, with one scale for all of a model: grey is 0. "
        "Edges and colours show that the first layer has learned low-level structure.",
    )
    folder.add(
        [
            (
                f"filters-{slug(each, n)}",
                figures.draw_filters(each.filters),
                f"{each.title}. {each.filters.about}",
            )
            for n, each in enumerate(models)
            if each.filters is not None
        ]
    )
