"""Results of a study: means, standard deviations, and agreement with papers."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from t2t.analysis.meter import macs_by_module
from t2t.lab.studies.study import ALIKE, Claim, Study
from t2t.models.without_weights import without_weights
from t2t.tasks.base import Metric
from t2t.tasks.classify import TOP1
from t2t.tasks.registry import primary_metric, task_class
from t2t.training.environment import read_environment
from t2t.training.initial_state import build_model
from t2t.training.recipe import Recipe
from t2t.training.run_folder import RunFolder

NUM_ERRORS = 2
"""Standard errors that a difference must exceed to be significant."""

ABOVE_CHANCE = 1.5
"""Multiple of the chance accuracy up to which an arm has learnt nothing."""

RUNS = "runs"
"""Folder with the runs of all studies."""

Verdict = Literal["agrees", "disagrees", "undecided"]


@dataclass(frozen=True)
class Values:
    """One number per seed."""

    by_seed: Mapping[int, float]

    @property
    def mean(self) -> float:
        """The mean over the seeds."""
        return statistics.fmean(self.by_seed.values())

    @property
    def std(self) -> float | None:
        """The standard deviation over the seeds; None for one seed."""
        if len(self.by_seed) < 2:
            return None
        return statistics.stdev(self.by_seed.values())

    def show(self, digits: int = 2) -> str:
        """The mean, and the standard deviation if there is one."""
        std = "" if self.std is None else f" ± {self.std:.{digits}f}"
        return f"{self.mean:.{digits}f}{std}"


@dataclass(frozen=True, kw_only=True)
class ModelCost:
    """Parameters of an arm's model and MACs per image."""

    parameters: int
    macs: int


def costs_of(study: Study, num_classes: int) -> dict[str, ModelCost]:
    """The cost of every arm's model; tasks without labels need no classes."""
    costs = {}
    for name, recipe in study.arms.items():
        needs_labels = task_class(recipe.task).needs_labels
        with without_weights():
            model = build_model(recipe, num_classes if needs_labels else 0)
        macs = macs_by_module(model, (recipe.channels, *recipe.image_size))
        costs[name] = ModelCost(
            parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
            macs=sum(items.total() for items in macs.values()),
        )
    return costs


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One arm's finished runs."""

    name: str
    recipe: Recipe
    cost: ModelCost
    results: Mapping[int, Mapping[str, Any]]
    """The result of each seed's run."""
    environments: tuple[Mapping[str, Any], ...] = ()

    def values(self, key: str) -> Values:
        """One number of each run."""
        return Values({seed: run[key] for seed, run in self.results.items()})

    @property
    def metric(self) -> Metric:
        """The primary metric of its task."""
        return primary_metric(self.recipe.task)

    @property
    def primary(self) -> Values:
        """The primary metric of the EMA weights."""
        return self.values(self.metric.name)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A published claim compared with our results."""

    claim: Claim
    difference: float
    """The first arm's primary metric minus the second's."""
    error: float | None
    """Twice the standard error of the difference; None with too few seeds."""
    at_chance: bool = False
    """Whether both arms are so near chance that their difference means nothing."""
    metric: Metric = TOP1

    @property
    def verdict(self) -> Verdict:
        """Whether our results agree with the publication."""
        if self.error is None or self.at_chance:
            return "undecided"
        if self.claim.relation == "alike":
            off = self.difference - self.claim.difference
            # Published numbers are accuracies: other metrics can only be alike.
            off = off if self.is_accuracy else self.difference
            nearer = min(abs(self.difference), abs(off))
            return "agrees" if nearer <= self.bound else "disagrees"
        sign = 1 if self.claim.relation == "better" else -1
        sign *= 1 if self.metric.higher_is_better else -1
        if abs(self.difference) <= self.error:
            return "undecided"
        return "agrees" if sign * self.difference > 0 else "disagrees"

    @property
    def is_accuracy(self) -> bool:
        """Whether the metric is an accuracy in per cent, as the published numbers."""
        return self.metric.name == TOP1.name

    @property
    def bound(self) -> float:
        """The difference up to which our arms count as alike."""
        return max(ALIKE if self.is_accuracy else 0.0, self.error or 0.0)

    def __str__(self) -> str:
        claim, digits = self.claim, self.metric.digits
        ours = signed(self.difference, digits)
        points = "points" if self.is_accuracy else f"in {self.metric.heading}"
        if claim.published is None:
            published = f"published as alike ({claim.where})"
        else:
            unit = "" if self.is_accuracy else " points of accuracy"
            difference = f"{signed(claim.difference, 1)}{unit}"
            published = f"published {difference} ({claim.where})"
        found = f"`{claim.first}` − `{claim.second}` is {ours}"
        if self.at_chance:
            why = "but both are near chance: train for longer"
            return f"Undecided: {found} {points}, {why}; {published}."
        if self.error is None:
            why = "but one seed has no standard deviation"
            return f"Undecided: {found} {points}, {why}; {published}."
        found = f"{found} ± {self.error:.{digits}f} {points}"
        if self.verdict == "undecided":
            return f"Undecided: {found}, which is not significant; {published}."
        return f"{self.verdict.capitalize()}: {found}; {published}."


def signed(points: float, digits: int = 2) -> str:
    """A difference with its sign."""
    return f"{points:+.{digits}f}".replace("-", "−")


def compare_claim(
    claim: Claim, arms: Mapping[str, Arm], num_classes: int
) -> Finding | None:
    """A claim compared with our results; None until both arms have some."""
    if not {claim.first, claim.second} <= arms.keys():
        return None
    metric = arms[claim.first].metric
    first, second = arms[claim.first].primary, arms[claim.second].primary
    error = None
    if first.std is not None and second.std is not None:
        variance = sum(
            each.std**2 / len(each.by_seed)
            for each in (first, second)
            if each.std is not None
        )
        error = NUM_ERRORS * math.sqrt(variance)
    at_chance = False
    if metric.name == TOP1.name:
        chance = 100 / num_classes
        at_chance = max(first.mean, second.mean) <= ABOVE_CHANCE * chance
    return Finding(
        claim=claim,
        difference=first.mean - second.mean,
        error=error,
        at_chance=at_chance,
        metric=metric,
    )


@dataclass(frozen=True, kw_only=True)
class StudyResult:
    """The finished runs of a study."""

    study: Study
    seeds: tuple[int, ...]
    arms: dict[str, Arm]
    """The arms with at least one finished run."""
    num_classes: int
    failed: tuple[str, ...] = ()
    """The runs that failed, each with its reason."""

    @property
    def findings(self) -> list[Finding]:
        """The claims compared with our results."""
        found = (
            compare_claim(claim, self.arms, self.num_classes)
            for claim in self.study.claims
        )
        return [finding for finding in found if finding is not None]

    @property
    def num_missing(self) -> int:
        """The number of runs left to do."""
        done = sum(len(arm.results) for arm in self.arms.values())
        return len(self.study.arms) * len(self.seeds) - done


def run_folder(folder: Path, recipe: Recipe, seed: int) -> Path:
    """The folder of a run, by its recipe: studies share equal arms."""
    return folder / RUNS / f"{recipe.name}-seed{seed}"


def finished(folder: Path, recipe: Recipe, seed: int) -> dict[str, Any] | None:
    """The result of a run if it is finished and has this very recipe."""
    run = RunFolder(run_folder(folder, recipe, seed))
    return None if run.changes(replace(recipe, seed=seed)) else run.result()


def gather(
    study: Study,
    seeds: Sequence[int],
    folder: Path,
    costs: Mapping[str, ModelCost],
    num_classes: int,
    errors: Mapping[tuple[str, int], str],
) -> StudyResult:
    """The finished runs of a study, and why others failed."""
    arms: dict[str, Arm] = {}
    for name, recipe in study.arms.items():
        results = {seed: finished(folder, recipe, seed) for seed in seeds}
        done = {seed: result for seed, result in results.items() if result is not None}
        if done:
            arms[name] = Arm(
                name=name,
                recipe=recipe,
                cost=costs[name],
                results=done,
                environments=tuple(
                    read_environment(run_folder(folder, recipe, seed)) for seed in done
                ),
            )
    # Another process may have finished a run that failed here.
    failed = tuple(
        f"`{name}`, seed {seed}: {reason}"
        for (name, seed), reason in errors.items()
        if name not in arms or seed not in arms[name].results
    )
    return StudyResult(
        study=study,
        seeds=tuple(seeds),
        arms=arms,
        num_classes=num_classes,
        failed=failed,
    )
