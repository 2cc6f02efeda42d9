r"""How many wrong labels and copies `t2t eval --report` finds, put there on purpose.

    python benchmarks/wrong_labels.py data path/to/cifar10 --seed 0 --out noisy-0
    t2t train benchmarks/wrong_labels.py:recipe --data noisy-0 --seed 0 \\
        --threads 1 --folder runs/noisy-0
    t2t eval runs/noisy-0 --report found-0.html
    python benchmarks/wrong_labels.py score found-0.csv noisy-0

The first command draws 10,000 training and 2,000 test images of CIFAR-10, gives 5 % of
each another label, and copies 300 of the test images into training: 100 as they are,
100 as JPEG of quality 75, 100 at 48 pixels, the size that the model sees. `truth.json`
says which.
"""

import argparse
import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from t2t.recipes.small_images import from_scratch
from t2t.training.recipe import Recipe, TokenDropping

NUM_TRAIN, NUM_VAL, NUM_COPIES = 10_000, 2_000, 100
SHARE_WRONG = 0.05
CLASSES = [
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
]


def recipe() -> Recipe:
    """A ResNet-10 on CIFAR-10 at 48 px, which one CPU core trains in 15 minutes."""
    shared = from_scratch("wrong_labels", "resnet10t", "cifar10", 48, 10)
    return replace(
        shared,
        model_args={},
        batch_size=128,
        drop_path=0.0,
        token_dropping=TokenDropping(),
        light_augment_share=0.1,
        evaluate_every=5,
        optimizer=replace(shared.optimizer.as_adamw(), lr=2e-3, scaling="none"),
        schedule=replace(shared.schedule, warmup_epochs=1),
        ema=replace(shared.ema, decay=0.99),
        augmentation=replace(
            shared.augmentation,
            rand_augment=None,
            mixup=0.0,
            mix_probability=0.5,
            erase=0.0,
        ),
    )


RECIPES = {"recipe": recipe}


def draw_images(cifar10: Path, split: str, num: int, seed: int) -> list[dict]:
    """Some of CIFAR-10's images, encoded, with labels and the numbers of their rows."""
    files = sorted(cifar10.glob(f"{split}-*.parquet"))
    table = pa.concat_tables([pq.read_table(file) for file in files])
    drawn = np.random.default_rng((seed, split == "train")).permutation(len(table))
    rows = table.take(np.sort(drawn[:num])).to_pylist()
    return [{"bytes": row["image"]["bytes"], "label": row["label"]} for row in rows]


def with_wrong_labels(rows: list[dict], seed: int) -> list[int]:
    """Gives 5 % of the images another label; returns their positions."""
    rng = np.random.default_rng((seed, len(rows)))
    chosen = np.sort(rng.permutation(len(rows))[: round(SHARE_WRONG * len(rows))])
    for index in chosen:
        rows[index]["label"] = int((rows[index]["label"] + rng.integers(1, 10)) % 10)
    return chosen.tolist()


def copied(encoded: bytes, how: str) -> bytes:
    """An image as it is, compressed, or resized."""
    if how == "exact":
        return encoded
    picture = Image.open(io.BytesIO(encoded)).convert("RGB")
    file = io.BytesIO()
    if how == "jpeg":
        picture.save(file, "JPEG", quality=75)
    else:
        picture.resize((48, 48), Image.Resampling.BICUBIC).save(file, "PNG")
    return file.getvalue()


def make_data(cifar10: Path, into: Path, seed: int) -> None:
    """Writes the images as parquet files, and what was done to them."""
    train = draw_images(cifar10, "train", NUM_TRAIN, seed)
    val = draw_images(cifar10, "test", NUM_VAL, seed)
    truth = {"wrong_train": with_wrong_labels(train, seed), "copies": {}}
    rng = np.random.default_rng((seed, 3))
    sources = rng.permutation(len(val))[: 3 * NUM_COPIES].tolist()
    for number, index in enumerate(sources):
        how = ("exact", "jpeg", "resized")[number // NUM_COPIES]
        truth["copies"][len(train)] = {"val": index, "how": how}
        train.append({**val[index], "bytes": copied(val[index]["bytes"], how)})
    # After copying, so that the copies keep CIFAR-10's labels.
    truth["wrong_val"] = with_wrong_labels(val, seed)
    into.mkdir(parents=True)
    features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel"}}
    features["label"]["names"] = CLASSES
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    for split, rows in {"train": train, "validation": val}.items():
        images = [{"bytes": row["bytes"], "path": None} for row in rows]
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        columns = {
            "image": pa.array(images, kind),
            "label": pa.array([row["label"] for row in rows], pa.int64()),
        }
        table = pa.table(columns).replace_schema_metadata(metadata)
        pq.write_table(table, into / f"{split}-00000-of-00001.parquet")
    (into / "truth.json").write_text(json.dumps(truth) + "\n")


def score(table: Path, data: Path) -> dict[str, Any]:
    """How much of what was done to the images a table of findings lists."""
    truth = json.loads((data / "truth.json").read_text())
    with table.open(newline="") as file:
        rows = [*csv.DictReader(file)]
    counts = {}
    for split in ("val", "train"):
        wrong = {*truth[f"wrong_{split}"]}
        listed = [
            number_of(row["path"])
            for row in rows
            if (row["finding"], row["split"]) == ("wrong label", split)
        ]
        hits = [number in wrong for number in listed]
        counts[f"wrong labels ({split})"] = {
            "put there": len(wrong),
            "listed": len(listed),
            "found": sum(hits),
            "right of the first 100": sum(hits[:100]),
        }
    pairs = {
        (number_of(row["path"]), number_of(row["other_path"]))
        for row in rows
        if row["finding"] == "near-duplicate"
    }
    for how in ("exact", "jpeg", "resized"):
        copies = {
            (copy["val"], int(number))
            for number, copy in truth["copies"].items()
            if copy["how"] == how
        }
        counts[f"copies ({how})"] = {
            "put there": len(copies),
            "found": len(copies & pairs),
        }
        pairs -= copies
    counts["other pairs"] = {"listed": len(pairs), "pairs": sorted(pairs)}
    return counts


def number_of(path: str) -> int:
    """The row of an image in its parquet file."""
    return int(re.findall(r"\[(\d+)\]$", path)[0])


def main() -> None:
    """Runs one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    data = commands.add_parser("data")
    data.add_argument("cifar10", type=Path)
    data.add_argument("--seed", type=int, default=0)
    data.add_argument("--out", type=Path, required=True)
    scoring = commands.add_parser("score")
    scoring.add_argument("table", type=Path)
    scoring.add_argument("data", type=Path)
    given = parser.parse_args()
    if given.command == "data":
        make_data(given.cifar10, given.out, given.seed)
    else:
        print(json.dumps(score(given.table, given.data), indent=1))


if __name__ == "__main__":
    main()
