"""The README's speed section, from records/speed/h200.json."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Row = dict[str, Any]

# The reference implementation on the same GPU: its own fp16 mixed precision, 224 px,
# batch 256 (t_14: 128), images/s of whole training steps and of inference.
REFERENCE_BATCH = 256
REFERENCE = {
    ("t2t_vit_7", "train"): 3866,
    ("t2t_vit_14", "train"): 2209,
    ("t2t_vit_24", "train"): 1238,
    ("t2t_vit_t_14", "train"): 1546,
    ("t2t_vit_14", "infer"): 5474,
}
USUAL = {"image_size": 224, "precision": "bf16"}


def speed_section(records: Path) -> str:
    """A heading, a sentence on how it was measured, and the tables."""
    path = records / "speed" / "h200.json"
    rows = json.loads(path.read_text()) if path.exists() else []
    rows = [row for row in rows if row["images_per_second"] is not None]
    steps = [row for row in rows if is_usual(row) and row["source"] == "synthetic"]
    if not steps:
        return ""
    gpus, versions = (
        " and ".join(sorted({row[key] for row in steps})) for key in ("gpu", "torch")
    )
    parts = [
        "## Speed",
        f"One {gpus}, torch {versions}, 224 px, bf16, random images, by `t2t bench`. "
        "A training step is forward, loss, backward, optimizer and EMA. The reference "
        "is the paper's own code on the same GPU, in its own fp16 mixed precision "
        "(t_14 at batch 128). All rows and their commands: "
        "[records/speed](records/speed/README.md).",
        step_table(steps),
    ]
    from_files = [row for row in rows if is_trained_from_files(row)]
    if from_files:
        parts += [
            "Whole training runs, which read, decode and augment images, compared "
            "with the same step on random images that are on the GPU already:",
            file_table(from_files),
        ]
    parts += [small_images(row) for row in rows if drops_tokens(row)]
    return "\n\n".join(parts)


def is_usual(row: Row) -> bool:
    """Whether a row has the step, size and precision that the table shows."""
    plain = row.get("recipe") is None and row.get("depth") is None
    return (
        plain
        and row.get("launch", "graph") == "graph"
        and all(row[key] == value for key, value in USUAL.items())
    )


def is_trained_from_files(row: Row) -> bool:
    """Whether a row is a training run with default workers, from files."""
    asked = row.get("workers") or row.get("resident")
    return row["source"] in ("jpeg", "pack") and "synthetic_share" in row and not asked


def drops_tokens(row: Row) -> bool:
    """Whether a row is of a recipe with token dropping."""
    return any(phase["keep"] < 1 for phase in row.get("phases", ()))


def step_table(rows: list[Row]) -> str:
    """Training and inference rates, fastest first."""
    found = {(row["model"], row["batch"], row["mode"]): row for row in rows}
    sizes = list(dict.fromkeys((row["model"], row["batch"]) for row in rows))

    def rate(size: tuple[str, int], mode: str) -> float:
        return found.get((*size, mode), {}).get("images_per_second", 0)

    sizes.sort(key=lambda size: rate(size, "train"), reverse=True)
    lines = [
        "| model | batch | training, images/s | peak GiB | reference "
        "| inference, images/s | reference |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for model, batch in sizes:
        size = model, batch
        memory = found.get((*size, "train"), {}).get("peak_memory_gib")
        known = REFERENCE if batch == REFERENCE_BATCH else {}
        cells = [
            model,
            number(batch),
            number(rate(size, "train")),
            number(memory, lambda gib: f"{gib:.1f}"),
            against(rate(size, "train"), known.get((model, "train"))),
            number(rate(size, "infer")),
            against(rate(size, "infer"), known.get((model, "infer"))),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def file_table(rows: list[Row]) -> str:
    """Training from files, and its share of the step's rate on random images."""
    lines = [
        "| model | batch | images from | images/s | of the step | GPU busy |",
        "|---|---:|---|---:|---:|---:|",
    ]
    words = {"jpeg": "JPEG files", "pack": "a pack"}
    for row in rows:
        cells = [
            row["model"],
            number(row["batch"]),
            words[row["source"]],
            number(row["images_per_second"]),
            number(row.get("synthetic_share"), lambda share: f"{share:.0%}"),
            number(row.get("busy_share"), lambda share: f"{share:.0%}"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def small_images(row: Row) -> str:
    """A sentence on a recipe with token dropping."""
    rates: dict[bool, list[float]] = {True: [], False: []}
    for phase in row["phases"]:
        rates[phase["keep"] < 1].append(phase["images_per_second"])
    return (
        f"The recipe `{row['recipe']}` ({row['model']}, {row['image_size']} px, batch "
        f"{row['batch']:,}, all augmentation) trains at "
        f"{row['images_per_second']:,.0f} images/s: {min(rates[True]):,.0f} with "
        f"token dropping, {min(rates[False]):,.0f} without."
    )


def number(
    value: float | None, written: Callable[[float], str] = lambda rate: f"{rate:,.0f}"
) -> str:
    """A number, or a dash if there is none."""
    return written(value) if value else "–"


def against(rate: float, reference: int | None) -> str:
    """The reference's rate, and how many times as fast ours is."""
    if reference is None or not rate:
        return "–"
    return f"{reference:,} (× {rate / reference:.1f})"
