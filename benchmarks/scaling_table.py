"""Writes the scaling tables of docs/scaling.md, from measured steps of one GPU.

python benchmarks/scaling_table.py      (or: make tables)
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from tables import fill

from t2t.recipes import imagenet
from t2t.training.forecast.measured_steps import measured_steps
from t2t.training.forecast.plan import JPEG_BYTES, Plan, plan

ROOT = Path(__file__).parents[1]
MEASURED = ROOT / "records" / "speed" / "growth-h200.json"
MODEL = "t2t_vit_14"
GPUS = (1, 8, 64, 1024)
STRONG_BATCH, WEAK_BATCH = 4096, 256
HEADINGS = (
    "GPUs", "batch", "images per GPU", "step, ms", "network, ms (not overlapped)",
    "hours", "efficiency", "images/s to read", "JPEGs per node, GB/s",
)  # fmt: skip


def planned(num_gpus: int, batch_size: int) -> Plan:
    """The plan of a run with measured steps."""
    recipe = replace(imagenet.published(MODEL), batch_size=batch_size)
    steps = measured_steps(MEASURED, recipe, "H200", "ddp", num_gpus)
    return plan(recipe, num_gpus, measured=steps)


def scaling_table(cases: Iterable[tuple[int, int]]) -> str:
    """A table of numbers of GPUs and batch sizes; efficiency is of the first."""
    plans = [(batch, planned(num_gpus, batch)) for num_gpus, batch in cases]
    lines = [HEADINGS, ("---",) * len(HEADINGS)]
    first = plans[0][1]
    for batch, each in plans:
        share = each.images_per_second * first.num_gpus
        share /= first.images_per_second * each.num_gpus
        per_node = each.images_per_second / each.num_nodes
        network = f"{1e3 * each.network_seconds:.1f}"
        if each.num_gpus > 1:
            network += f" ({1e3 * each.exposed_seconds:.1f})"
        lines.append(
            (
                f"{each.num_gpus:,}",
                f"{batch:,}",
                f"{each.images_per_gpu:,}",
                f"{1e3 * each.step_seconds:.1f}",
                network,
                f"{each.hours:.2g}",
                f"{share:.0%}".replace("%", " %"),
                f"{each.images_per_second:,.0f}",
                f"{per_node * JPEG_BYTES / 1e9:.1f}",
            )
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def current(page: str) -> str:
    """The page with current tables."""
    strong = scaling_table((num, STRONG_BATCH) for num in GPUS)
    weak = scaling_table((num, num * WEAK_BATCH) for num in GPUS)
    return fill(fill(page, "strong", strong), "weak", weak)


def main() -> None:
    page = ROOT / "docs" / "scaling.md"
    page.write_text(current(page.read_text()))


if __name__ == "__main__":
    main()
