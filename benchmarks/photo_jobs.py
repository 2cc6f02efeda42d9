"""Writes the GPU jobs for photographs: benchmarks/jobs/photos.json.

    python benchmarks/photo_jobs.py

First what a GPU has not run yet, then trials of 20 epochs on held-out images, the
leaderboard, the baselines and the studies. IMAGEWOOF names the folder of the data.
"""

import json
import sys
from pathlib import Path
from typing import Any

JOBS = Path(__file__).parent / "jobs"
sys.path.insert(0, str(JOBS))

from photos_trials import TRIALS  # noqa: E402

DATA = "--data ${IMAGEWOOF:-../imagewoof-160}"
RUNS = "${RUNS:-/tmp/photos}"
TRIAL_MINUTES = 2.5
"""At most; 20 epochs are 180,000 images."""
BOARD_MINUTES = {5: 1.5, 20: 2.5, 80: 3.0, 200: 6.0}
STUDY_MINUTES = {
    "photo_networks": 7.0,
    "photo_local": 8.0,
    "photo_tokens": 3.0,
    "photo_depth": 3.0,
}
"""Of one seed."""
SEEDS = (0, 1, 2)
NEW_MODELS = ("t2t_vit_14_depthwise", "t2t_vit_14_conv_attention", "t2t_pyramid_base")


def jobs() -> list[dict[str, Any]]:
    """All jobs in order."""
    models = " ".join(NEW_MODELS)
    found = [
        ("data", f"ls -l {DATA.split()[1]}/*.parquet", 0.1),
        (
            "speed",
            f"python -m t2t bench t2t_vit_14 {models} --image-size 128 "
            "--batch-size 256 --launch eager_graph --out $OUT/photos-speed.json",
            3.0,
        ),
        *(
            (
                f"trial-{name}",
                f"python -m t2t train benchmarks/jobs/photos_trials.py:{name} {DATA} "
                f"--folder {RUNS}/trials/{name}",
                TRIAL_MINUTES,
            )
            for name in TRIALS
        ),
        *(
            (
                f"board-{epochs}-{seed}",
                f"python -m t2t train photos.imagewoof_{epochs} {DATA} --seed {seed} "
                f"--folder {RUNS}/board/{epochs}-{seed}",
                minutes,
            )
            for seed in SEEDS
            for epochs, minutes in BOARD_MINUTES.items()
        ),
        *(
            (
                f"{name}-{seed}",
                f"python -m t2t study {name} {DATA} --seeds {seed} --folder "
                f"{RUNS}/studies && cp {RUNS}/studies/{name}/table.md "
                f"$OUT/{name}-{seed}.md",
                minutes,
            )
            for seed in SEEDS
            for name, minutes in STUDY_MINUTES.items()
        ),
    ]
    return [
        {"name": name, "command": command, "minutes": minutes}
        for name, command, minutes in found
    ]


if __name__ == "__main__":
    (JOBS / "photos.json").write_text(json.dumps(jobs(), indent=1) + "\n")
