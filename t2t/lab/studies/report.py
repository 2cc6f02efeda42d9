"""A study's outcome as a page, as numbers for programs, and as a picture beside it."""

from pathlib import Path
from typing import Any

from t2t.errors import UserError
from t2t.lab.studies.figures import draw
from t2t.lab.studies.results import Arm, Outcome, Values
from t2t.training.run_folder import write_json, write_page

TABLE, NUMBERS, PICTURE = "table.md", "table.json", "picture.png"


def write(outcome: Outcome, folder: Path) -> Path:
    """Writes table, numbers and picture into the study's folder."""
    page = folder / TABLE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / NUMBERS, as_json(outcome))
        draw(outcome, folder / PICTURE)
        write_page(page, markdown(outcome))
    except OSError as error:
        raise UserError(
            f"The study's table cannot be written into {folder} ({error.strerror}); "
            "put that right, and the same command goes on."
        ) from error
    return page


def markdown(outcome: Outcome) -> str:
    """The outcome as a page."""
    study = outcome.study
    parts = [
        f"# {study.name}",
        study.question,
        conditions(outcome),
        "\n".join(
            [
                "| arm | parameters, M | MACs, G | images/s | top-1, % | raw, % "
                "| seeds |",
                "|---|---|---|---|---|---|---|",
                *(row(arm) for arm in outcome.arms.values()),
            ]
        ),
        f"![{study.name}]({PICTURE})",
        "## Beside what was published",
        study.paper,
        "\n".join(f"- {finding}" for finding in outcome.findings)
        or "Nothing to set beside it yet.",
        f"How the arms compare: {study.notes}" if study.notes else "",
        missing(outcome),
        "\n".join(f"- {run}" for run in outcome.left_out),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def row(arm: Arm) -> str:
    """An arm in numbers."""
    cells = [
        f"`{arm.name}`",
        f"{arm.cost.parameters / 1e6:.2f}",
        f"{arm.cost.macs / 1e9:.3f}",
        f"{arm.values('images_per_second').mean:,.0f}",
        str(arm.top1),
        str(arm.values("top1_raw")),
        ", ".join(map(str, arm.results)),
    ]
    return f"| {' | '.join(cells)} |"


def conditions(outcome: Outcome) -> str:
    """What the numbers were made of, in a few sentences."""
    recipes = [arm.recipe for arm in outcome.arms.values()]
    epochs = joined(str(recipe.epochs) for recipe in recipes)
    data = joined(recipe.data for recipe in recipes)
    held = joined(str(recipe.holdout) for recipe in recipes)
    evaluated_on = (
        "its validation set" if held == "0" else f"{held} held-out training images"
    )
    told = [each for arm in outcome.arms.values() for each in arm.environments]
    devices = joined(str(each["device"]) for each in told)
    torches = joined(str(each["torch"]) for each in told)
    precisions = joined(str(each["precision"]) for each in told)
    return (
        f"{epochs} {'epoch' if epochs == '1' else 'epochs'} of {data}, evaluated on "
        f"{evaluated_on}; mean ± standard deviation over the seeds, of the EMA and "
        f"(raw) of the last weights. On {devices}, {precisions}, torch {torches}."
    )


def joined(words: Any) -> str:
    """Words that should all be one, or all of them."""
    return ", ".join(dict.fromkeys(words))


def missing(outcome: Outcome) -> str:
    """What is still to be done, in a sentence."""
    if outcome.num_missing == 0:
        return ""
    total = len(outcome.study.arms) * len(outcome.seeds)
    done = {name: len(arm.results) for name, arm in outcome.arms.items()}
    names = [
        f"`{name}`"
        for name in outcome.study.arms
        if done.get(name, 0) < len(outcome.seeds)
    ]
    return (
        f"Not complete: {outcome.num_missing} of {total} runs are still to be done, of "
        f"{', '.join(names)}; the same command, without --only, goes on."
    )


def as_json(outcome: Outcome) -> dict[str, Any]:
    """The outcome for programs."""
    study = outcome.study
    return {
        "study": study.name,
        "question": study.question,
        "paper": study.paper,
        "seeds": list(outcome.seeds),
        "missing_runs": outcome.num_missing,
        "left_out": list(outcome.left_out),
        "arms": [arm_json(arm) for arm in outcome.arms.values()],
        "findings": [
            {
                "first": finding.claim.first,
                "second": finding.claim.second,
                "where": finding.claim.where,
                "published": finding.claim.published,
                "difference": round(finding.difference, 4),
                "error": None if finding.error is None else round(finding.error, 4),
                "verdict": finding.verdict,
                "sentence": str(finding),
            }
            for finding in outcome.findings
        ],
    }


def arm_json(arm: Arm) -> dict[str, Any]:
    """An arm for programs."""
    recipe = arm.recipe
    return {
        "arm": arm.name,
        "recipe": recipe.name,
        "model": recipe.model,
        "model_args": recipe.model_args,
        "epochs": recipe.epochs,
        "data": recipe.data,
        "holdout": recipe.holdout,
        "parameters": arm.cost.parameters,
        "macs": arm.cost.macs,
        **{
            key: values_json(arm.values(key))
            for key in ("top1", "top1_raw", "images_per_second", "train_minutes")
        },
        "devices": list(dict.fromkeys(each["device"] for each in arm.environments)),
    }


def values_json(values: Values) -> dict[str, Any]:
    """A number of every seed, their mean and spread."""
    spread = values.spread
    return {
        "by_seed": {str(seed): value for seed, value in values.by_seed.items()},
        "mean": round(values.mean, 4),
        "spread": None if spread is None else round(spread, 4),
    }
