"""Runs shell commands one after the other on a machine that is lent briefly.

    python benchmarks/run_jobs.py benchmarks/jobs/proofs.json --out $OUT --minutes 9

Each job is {"name": ..., "command": ..., "minutes": ...}. A job whose log says that it
succeeded is not run again, one that does not fit into the time left is skipped, and one
that takes longer than its minutes is stopped. Commands run in the repository root with
OUT set to the output folder, which gets NAME.log of each job and jobs.json.
"""

import argparse
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any


def run_job(job: dict[str, Any], out: Path, seconds: float) -> dict[str, Any]:
    """Runs a job for at most so long; its row for jobs.json."""
    started = time.monotonic()
    environment = {**os.environ, "OUT": str(out), "PYTHONUNBUFFERED": "1"}
    with (out / f"{job['name']}.log").open("a") as log:
        log.write(f"$ {job['command']}\n")
        log.flush()
        process = subprocess.Popen(
            ["bash", "-c", job["command"]],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)  # a run saves its checkpoint
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
            status = None
    return {
        "name": job["name"],
        "issue": job.get("issue"),
        "command": job["command"],
        "exit_status": status,
        "seconds": round(time.monotonic() - started, 1),
    }


def main() -> None:
    """Runs the jobs that are not done yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("jobs", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--only", nargs="*", help="names of jobs")
    options = parser.parse_args()
    ends = time.monotonic() + 60 * options.minutes
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "jobs.json"
    rows = json.loads(file.read_text()) if file.exists() else []
    done = {row["name"] for row in rows if row["exit_status"] == 0}
    for job in json.loads(options.jobs.read_text()):
        if job["name"] in done or (options.only and job["name"] not in options.only):
            continue
        # A job of all the minutes fits too, though a moment of them is gone.
        left = ends - time.monotonic()
        if 60 * job["minutes"] > left + 1:
            print(f"{job['name']}: {job['minutes']} min do not fit into {left:.0f} s")
            continue
        row = run_job(job, options.out, 60 * job["minutes"])
        rows.append(row)
        file.write_text(json.dumps(rows, indent=1) + "\n")
        print(f"{row['name']}: exit status {row['exit_status']}, {row['seconds']} s")


if __name__ == "__main__":
    main()
