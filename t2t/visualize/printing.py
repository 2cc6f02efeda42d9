"""A look as a table for the terminal."""

from rich import box
from rich.table import Table
from rich.text import Text

from t2t.visualize.data import Look, ModelLook


def look_table(look: Look) -> Table:
    """A row for each model."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("weights", style="cyan", overflow="fold")
    table.add_column("model", overflow="fold")
    for heading in ("image", "tokens", "dead channels", "distance, first → last block"):
        table.add_column(heading, justify="right")
    for each in look.models:
        table.add_row(
            Text(each.weights),
            Text(each.model),
            "×".join(map(str, each.image_size)),
            "×".join(map(str, each.images[0].splits[-1].grid)),
            f"{each.num_dead:,} of {each.num_channels:,}",
            distance_in_words(each),
        )
    return table


def distance_in_words(model: ModelLook) -> str:
    """The mean attention distance of the first and the last block."""
    blocks = [each for each in model.distances if each.is_block]
    if not blocks:
        return "–"
    first, last = (
        sum(each.heads) / len(each.heads) for each in (blocks[0], blocks[-1])
    )
    return f"{first:.1f} → {last:.1f} px"
