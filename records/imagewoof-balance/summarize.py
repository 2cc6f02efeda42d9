"""Gathers the runs' evaluations: python summarize.py runs > numbers.json

Each run was evaluated by `t2t eval RUN --json > RUN/eval.json`.
"""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

CUT = "Golden retriever"


def summarize(folder: Path) -> dict[str, Any]:
    arms: dict[str, list[dict[str, float]]] = {}
    for file in sorted(folder.glob("*/eval.json")):
        arm, _, seed = file.parent.name.rpartition("-")
        found = json.loads(file.read_text())
        recall = {row["name"]: row["top1"] for row in found["classes"]}
        others = [value for name, value in recall.items() if name != CUT]
        row = {
            "seed": int(seed),
            "macro_accuracy": statistics.fmean(recall.values()),
            "recall_of_cut_class": recall[CUT],
            "recall_of_others": statistics.fmean(others),
            "loss": found["loss"],
        }
        arms.setdefault(arm, []).append({k: round(v, 4) for k, v in row.items()})
    return {arm: {"runs": rows, **spread(rows)} for arm, rows in arms.items()}


def spread(rows: list[dict[str, float]]) -> dict[str, float]:
    """Mean and standard deviation over the seeds."""
    found = {}
    for name in ("macro_accuracy", "recall_of_cut_class", "recall_of_others", "loss"):
        values = [row[name] for row in rows]
        found[name] = round(statistics.fmean(values), 4)
        if len(values) > 1:
            found[f"{name}_std"] = round(statistics.stdev(values), 4)
    return found


if __name__ == "__main__":
    print(json.dumps(summarize(Path(sys.argv[1])), indent=1))
