"""The README's findings, from the tables of all recorded studies."""

import json
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

INTRODUCTION = """\
## Findings

Do the papers' findings hold for small images? Each study has one recipe, one number of epochs and arms that differ in one
thing; mean ± standard deviation over the seeds. `t2t study` runs them; [Studies](docs/studies.md) explains the verdicts."""  # noqa: E501


def findings_section(records: Path) -> str:
    """A row for each study that is recorded; empty if there is none."""
    paths = sorted(records.glob("*/*/table.json"))
    rows = [row(json.loads(path.read_text()), path.parent, records) for path in paths]
    if not rows:
        return ""
    heading = [
        "| question | top-1 of the arms, % | published claims |",
        "|---|---|---|",
    ]
    return "\n\n".join([INTRODUCTION, "\n".join([*heading, *rows])])


def row(study: dict[str, Any], folder: Path, records: Path) -> str:
    """A study as a row, its best arm first."""
    arms = sorted(study["arms"], key=lambda arm: -arm["top1"]["mean"])
    page = Path("records", folder.relative_to(records), "README.md")
    cells = [
        f"[{study['question']}]({page.as_posix()})",
        ", ".join(arm_result(arm, len(study["seeds"])) for arm in arms),
        verdicts(study["findings"]),
    ]
    return f"| {' | '.join(cells)} |"


def arm_result(arm: dict[str, Any], num_seeds: int) -> str:
    """An arm's mean and standard deviation, and the number of seeds if some lack."""
    values = list(arm["top1"]["by_seed"].values())
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    seeds = "" if len(values) == num_seeds else f" ({len(values)} of {num_seeds} seeds)"
    return f"`{arm['arm']}` {statistics.fmean(values):.2f}{spread}{seeds}"


def verdicts(findings: list[dict[str, Any]]) -> str:
    """The number of claims that agree, and those that do not."""
    counts = Counter(finding["verdict"] for finding in findings)
    words = {"agrees": "agree", "disagrees": "disagree", "undecided": "undecided"}
    counted = ", ".join(
        f"{counts[one]} {one if counts[one] == 1 else many}"
        for one, many in words.items()
        if counts[one]
    )
    others = [
        f"`{finding['first']}` against `{finding['second']}`"
        for finding in findings
        if finding["verdict"] == "disagrees"
    ]
    return f"{counted} ({'; '.join(others)})" if others else counted
