"""Prediction at batch 1 on two cores, ours beside the paper's operations, as JSON.

python benchmarks/cpu.py
python benchmarks/cpu.py t2t_vit_7 --rounds 51
"""

import argparse
import json
from dataclasses import asdict

from t2t.bench.alternating import compare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="t2t_vit_14")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    comparison = compare(
        options.model, rounds=options.rounds, num_threads=options.threads
    )
    print(json.dumps(asdict(comparison), indent=2))


if __name__ == "__main__":
    main()
