"""Counts dead channels by layer, at several limits, over the first test images.

python measure.py path/to/test.parquet NUM WEIGHTS...
"""

import json
import sys

import pyarrow.parquet
import torch

import t2t

LIMITS = (0.01, 0.03, 0.1, 0.3)

path, num, *weights = sys.argv[1:]
rows = pyarrow.parquet.read_table(path).slice(0, int(num)).to_pylist()
seen = t2t.look(
    weights[0], [row["image"]["bytes"] for row in rows], compare=weights[1:]
)
found = {}
for model in seen.models:
    found[model.weights] = [
        {
            "layer": layer.name,
            "channels": len(layer.std),
            **{
                f"std at most {limit:g} of the median": int(
                    (layer.std <= limit * layer.std.median()).sum()
                )
                for limit in LIMITS
            },
            "outsized": int(layer.outsized.sum()),
            "least std": round(float(layer.relative_std.min()), 4),
            "largest std": round(float(layer.relative_std.max()), 2),
            "largest rms": round(float(layer.rms.max() / layer.rms.median()), 2),
        }
        for layer in model.channels
    ]
found = {"images": seen.num_images, "torch": torch.__version__, "models": found}
json.dump(found, sys.stdout, indent=1)
