"""A study's results as a Markdown page, JSON and a picture."""

from pathlib import Path
from typing import Any

from t2t.errors import UserError
from t2t.lab.studies.figures import draw_study
from t2t.lab.studies.results import Arm, StudyResult, Values
from t2t.training.run_files import write_json, write_text

TABLE, NUMBERS, PICTURE = "table.md", "table.json", "picture.png"


def write(result: StudyResult, folder: Path) -> Path:
    """Writes table, JSON and picture into the study's folder."""
    page = folder / TABLE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / NUMBERS, as_json(result))
        draw_study(result, folder / PICTURE)
        write_text(page, markdown(result))
    except OSError as error:
        raise UserError(
            f"The study's table cannot be written into {folder} ({error.strerror}); "
            "fix that and run the same command to resume."
        ) from error
    return page


def markdown(result: StudyResult) -> str:
    """The results as a Markdown page."""
    study, heading = result.study, result.study.metric.heading
    raw = heading.replace(result.study.metric.label, "raw", 1)
    parts = [
        f"# {study.name}",
        study.question,
        conditions(result),
        "\n".join(
            [
                f"| arm | parameters, M | MACs, G | images/s | {heading} | {raw} "
                "| seeds |",
                "|---|---|---|---|---|---|---|",
                *(row(arm) for arm in result.arms.values()),
            ]
        ),
        f"![{study.name}]({PICTURE})",
        "## Compared with published results",
        study.paper,
        "\n".join(f"- {finding}" for finding in result.findings)
        or "Nothing to compare yet.",
        f"How the arms compare: {study.notes}" if study.notes else "",
        missing(result),
        "\n".join(f"- {run}" for run in result.failed),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def row(arm: Arm) -> str:
    """A table row of an arm."""
    metric = arm.metric
    cells = [
        f"`{arm.name}`",
        f"{arm.cost.parameters / 1e6:.2f}",
        f"{arm.cost.macs / 1e9:.3f}",
        f"{arm.values('images_per_second').mean:,.0f}",
        arm.primary.show(metric.digits),
        arm.values(f"{metric.name}_raw").show(metric.digits),
        ", ".join(map(str, arm.results)),
    ]
    return f"| {' | '.join(cells)} |"


def conditions(result: StudyResult) -> str:
    """Data, epochs, hardware and versions, in a few sentences."""
    recipes = [arm.recipe for arm in result.arms.values()]
    epochs = cat(str(recipe.epochs) for recipe in recipes)
    data = cat(recipe.data for recipe in recipes)
    held = cat(str(recipe.holdout) for recipe in recipes)
    evaluated_on = (
        "its validation set" if held == "0" else f"{held} held-out training images"
    )
    environments = [each for arm in result.arms.values() for each in arm.environments]
    devices = cat(str(each["device"]) for each in environments)
    torches = cat(str(each["torch"]) for each in environments)
    precisions = cat(str(each["precision"]) for each in environments)
    return (
        f"{epochs} {'epoch' if epochs == '1' else 'epochs'} of {data}, evaluated on "
        f"{evaluated_on}; mean ± standard deviation over the seeds, of the EMA "
        f"weights and of the raw ones. On {devices}, {precisions}, torch {torches}."
    )


def cat(words: Any) -> str:
    """The distinct words; usually one."""
    return ", ".join(dict.fromkeys(words))


def missing(result: StudyResult) -> str:
    """A sentence on the runs left to do."""
    if result.num_missing == 0:
        return ""
    total = len(result.study.arms) * len(result.seeds)
    done = {name: len(arm.results) for name, arm in result.arms.items()}
    names = [
        f"`{name}`"
        for name in result.study.arms
        if done.get(name, 0) < len(result.seeds)
    ]
    return (
        f"Not complete: {result.num_missing} of {total} runs are left, of "
        f"{', '.join(names)}; run the same command without --only to resume."
    )


def as_json(result: StudyResult) -> dict[str, Any]:
    """The results as JSON."""
    study = result.study
    return {
        "study": study.name,
        "question": study.question,
        "paper": study.paper,
        "metric": study.metric.name,
        "seeds": list(result.seeds),
        "missing_runs": result.num_missing,
        "failed_runs": list(result.failed),
        "arms": [arm_json(arm) for arm in result.arms.values()],
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
            for finding in result.findings
        ],
    }


def arm_json(arm: Arm) -> dict[str, Any]:
    """An arm as JSON."""
    recipe, metric = arm.recipe, arm.metric.name
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
            for key in (metric, f"{metric}_raw", "images_per_second", "train_minutes")
        },
        "devices": list(dict.fromkeys(each["device"] for each in arm.environments)),
    }


def values_json(values: Values) -> dict[str, Any]:
    """A number of each seed, their mean and standard deviation."""
    std = values.std
    return {
        "by_seed": {str(seed): value for seed, value in values.by_seed.items()},
        "mean": round(values.mean, 4),
        "std": None if std is None else round(std, 4),
    }
