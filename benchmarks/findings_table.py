"""README's findings, made from the tables of all recorded studies."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

INTRODUCTION = """\
## Findings

The papers' findings asked again of small images: one recipe, one number of epochs, arms that differ in one thing,
mean ± standard deviation over the seeds. `t2t study` runs them; how a verdict comes about is in
[Studies](docs/studies.md)."""  # noqa: E501


def findings_section(records: Path) -> str:
    """A row for each study that is recorded; empty where there is none."""
    paths = sorted(records.glob("*/*/table.json"))
    rows = [row(json.loads(path.read_text()), path.parent, records) for path in paths]
    if not rows:
        return ""
    heading = [
        "| question | top-1 of the arms, % | beside what was published |",
        "|---|---|---|",
    ]
    return "\n\n".join([INTRODUCTION, "\n".join([*heading, *rows])])


def row(study: dict[str, Any], folder: Path, records: Path) -> str:
    """A study in one line, its best arm first."""
    arms = sorted(study["arms"], key=lambda arm: -arm["top1"]["mean"])
    page = Path("records", folder.relative_to(records), "README.md")
    cells = [
        f"[{study['question']}]({page.as_posix()})",
        ", ".join(f"`{arm['arm']}` {accuracy(arm['top1'])}" for arm in arms),
        verdicts(study["findings"]),
    ]
    return f"| {' | '.join(cells)} |"


def accuracy(top1: dict[str, Any]) -> str:
    """The mean over the seeds, and their spread where there are several."""
    spread = "" if top1["spread"] is None else f" ± {top1['spread']:.2f}"
    return f"{top1['mean']:.2f}{spread}"


def verdicts(findings: list[dict[str, Any]]) -> str:
    """How often ours agree, and what does not."""
    counts = Counter(finding["verdict"] for finding in findings)
    words = {"agrees": "agree", "disagrees": "disagree", "undecided": "undecided"}
    told = ", ".join(
        f"{counts[one]} {one if counts[one] == 1 else many}"
        for one, many in words.items()
        if counts[one]
    )
    others = [
        f"`{finding['first']}` against `{finding['second']}`"
        for finding in findings
        if finding["verdict"] == "disagrees"
    ]
    return f"{told} ({'; '.join(others)})" if others else told
