"""The sections of a report, each with its pictures and how to read them."""

from functools import partial

from matplotlib.figure import Figure

from t2t.analysis.feature_maps import DEAD_BELOW, OUTSIZED_ABOVE
from t2t.visualize import figures
from t2t.visualize.data import ImageLook, ModelLook
from t2t.visualize.figures import aspect_of
from t2t.visualize.folder import Folder, add_by_image, slug


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
        "A row is a layer, a panel one of its channels; they are evenly spaced, not "
        "selected. All panels share one scale: the difference from the channel's mean "
        "over the image, in units of the standard deviation of the median channel.",
    )
    folder.page.paragraph(
        "A red frame is a dead channel: its standard deviation over all positions of "
        f"all images is at most {100 * DEAD_BELOW:g} % of the median channel's. An "
        "orange frame is an outsized channel: the root mean square of its values is "
        f"more than {OUTSIZED_ABOVE:g} times the median channel's."
    )
    shown = [(n, each) for n, each in enumerate(models) if each.channels]
    if not shown:
        folder.page.paragraph("These models have a single token, so nothing can vary.")
        return
    add_by_image(
        folder,
        shown,
        "features",
        lambda model, image: figures.draw_features(image, model.channels),
    )
    caption = (
        "Left: dead channels by layer. Right: a line per layer, its channels sorted by "
        "their standard deviation."
    )
    drawn = figures.draw_dead([each for _, each in shown])
    folder.add([("dead-channels", drawn, caption)])
    for _, each in shown:
        folder.page.paragraph(f"{each.title}: channels by layer")
        folder.page.table(
            ("layer", "channels", "dead", "outsized", "least std", "largest std"),
            [
                (
                    layer.name.replace(" ", "\N{NO-BREAK SPACE}"),
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
        "image: 1 is the share of a token if all had the same, and "
        f"{figures.HEADS_UP_TO:g} or more is the brightest colour."
    )
    for kind, text in kinds.items():
        folder.page.paragraph(f"Attention {text}.")
        add_by_image(
            folder,
            with_heads,
            f"attention-{kind.replace('_', '-')}",
            partial(draw_attention_heads, kind),
        )


def draw_attention_heads(kind: str, model: ModelLook, image: ImageLook) -> Figure:
    """Where the heads look in one image."""
    return figures.draw_heads(image.heads, kind, aspect_of(image.pixels))


def add_rollouts(folder: Folder, models: tuple[ModelLook, ...]) -> None:
    """Attention rollout over the images."""
    shown = [(n, each) for n, each in enumerate(models) if each.images[0].rollouts]
    folder.page.section("Attention rollout")
    if not shown:
        folder.page.paragraph(
            "None of these models has maps of every block over the same tokens."
        )
        return
    folder.page.paragraph(
        "The attention of the blocks multiplied together, from what the head reads "
        "back to the image: heads are averaged, and the skip counts as half of each "
        f"block. Relative to the mean; {figures.ROLLOUT_UP_TO:g} or more is brightest."
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
        "to, weighted by attention; the mean over tokens and images. The dashed line "
        "is attention to all tokens alike, so heads below it look nearby."
    )
    caption = "By layer and head."
    folder.add([("attention-distance", figures.draw_distances(models), caption)])


def add_norms(folder: Folder, models: tuple[ModelLook, ...]) -> None:
    """Token norms by layer."""
    folder.page.section(
        "Token norms",
        "The length (L2 norm) of the tokens by layer: the mean and, shaded, the 5th to "
        "95th percentile over tokens and images. A few tokens far longer than the rest "
        "hold global information instead of their patch.",
    )
    caption = "On a logarithmic scale."
    folder.add([("token-norms", figures.draw_norms(models), caption)])


def add_positions(folder: Folder, models: tuple[ModelLook, ...]) -> None:
    """Similarity of positions."""
    folder.page.section(
        "Positions",
        "A panel per token: the cosine similarity of its position embedding to those "
        "of all tokens. If a model has learned the 2-D layout, neighbours are alike.",
    )
    for n, each in enumerate(models):
        if each.positions is None:
            folder.page.paragraph(f"{each.title} has no table of positions.")
            continue
        figure = figures.draw_positions(each.positions)
        caption = f"{each.title}. {each.positions.caption}"
        folder.add([(f"positions-{slug(each, n)}", figure, caption)])


def add_filters(folder: Folder, models: tuple[ModelLook, ...]) -> None:
    """First-layer filters."""
    folder.page.section(
        "First-layer filters",
        f"The filters of the largest norm, up to {figures.FILTERS_SHOWN}, with one "
        "scale for all of a model: grey is 0. Edges and colours are low-level "
        "structure that the layer has learned.",
    )
    folder.add(
        [
            (
                f"filters-{slug(each, n)}",
                figures.draw_filters(each.filters),
                f"{each.title}. {each.filters.caption}",
            )
            for n, each in enumerate(models)
            if each.filters is not None
        ]
    )


SECTIONS = (
    add_splits,
    add_features,
    add_heads,
    add_rollouts,
    add_distances,
    add_norms,
    add_positions,
    add_filters,
)
"""In the order of the page."""
