"""What a study came to: means, spreads, and how they bear out what was published."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from t2t.analysis.meter import macs_by_module
from t2t.lab.studies.study import ALIKE, Claim, Study
from t2t.training.recipe import Recipe
from t2t.training.run_folder import RunFolder, read_environment
from t2t.training.state import build_model

NUM_ERRORS = 2
"""Standard errors that a difference must exceed to count."""

ABOVE_CHANCE = 1.5
"""Times the accuracy of guessing up to which nothing was learnt to speak of."""

RUNS = "runs"
"""Where the runs of all studies of a folder lie."""

Verdict = Literal["agrees", "disagrees", "undecided"]


@dataclass(frozen=True)
class Values:
    """One number for each seed."""

    by_seed: Mapping[int, float]

    @property
    def mean(self) -> float:
        """The mean over the seeds."""
        return statistics.fmean(self.by_seed.values())

    @property
    def spread(self) -> float | None:
        """The standard deviation of a seed; None where there is only one."""
        if len(self.by_seed) < 2:
            return None
        return statistics.stdev(self.by_seed.values())

    def __str__(self) -> str:
        spread = "" if self.spread is None else f" ± {self.spread:.2f}"
        return f"{self.mean:.2f}{spread}"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What an arm's model costs for one image."""

    parameters: int
    macs: int


def costs_of(study: Study, num_classes: int) -> dict[str, Cost]:
    """Parameters and multiplications of every arm's model."""
    costs = {}
    for name, recipe in study.arms.items():
        with torch.device("meta"):
            model = build_model(recipe, num_classes)
        macs = macs_by_module(model, (recipe.channels, *recipe.image_size))
        costs[name] = Cost(
            parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
            macs=sum(items.total() for items in macs.values()),
        )
    return costs


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One arm's finished runs."""

    name: str
    recipe: Recipe
    cost: Cost
    results: Mapping[int, Mapping[str, Any]]
    """What each seed's run wrote down at its end."""
    environments: tuple[Mapping[str, Any], ...] = ()

    def values(self, key: str) -> Values:
        """One number of every run."""
        return Values({seed: run[key] for seed, run in self.results.items()})

    @property
    def top1(self) -> Values:
        """Accuracy of the averaged weights."""
        return self.values("top1")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A published claim beside our own numbers."""

    claim: Claim
    difference: float
    """How much better the first is here, in points."""
    error: float | None
    """Twice the standard error of the difference; None where seeds are too few."""
    at_chance: bool = False
    """Whether both arms are so near to guessing that their difference says nothing."""

    @property
    def verdict(self) -> Verdict:
        """Whether our means and spreads say what was published."""
        if self.error is None or self.at_chance:
            return "undecided"
        if self.claim.relation == "alike":
            off = self.difference - self.claim.difference
            nearer = min(abs(self.difference), abs(off))
            return "agrees" if nearer <= self.bound else "disagrees"
        sign = 1 if self.claim.relation == "better" else -1
        if abs(self.difference) <= self.error:
            return "undecided"
        return "agrees" if sign * self.difference > 0 else "disagrees"

    @property
    def bound(self) -> float:
        """The difference up to which our arms are taken for alike."""
        return max(ALIKE, self.error or 0.0)

    def __str__(self) -> str:
        claim, ours = self.claim, self.difference
        if claim.published is None:
            published = f"published as alike ({claim.where})"
        else:
            published = f"published {signed(claim.difference, 1)} ({claim.where})"
        told = f"`{claim.first}` − `{claim.second}` is {signed(ours)}"
        if self.at_chance:
            why = "but both hardly do better than guessing: train for longer to tell"
            return f"Undecided: {told} points, {why}; {published}."
        if self.error is None:
            why = "and a single seed has no spread"
            return f"Undecided: {told} points, {why}; {published}."
        told = f"{told} ± {self.error:.2f} points"
        if self.verdict == "undecided":
            return f"Undecided: {told}, which could be chance; {published}."
        return f"{self.verdict.capitalize()}: {told}; {published}."


def signed(points: float, digits: int = 2) -> str:
    """A difference with its sign, as typeset."""
    return f"{points:+.{digits}f}".replace("-", "−")


def find(claim: Claim, arms: Mapping[str, Arm], num_classes: int) -> Finding | None:
    """A claim beside our numbers, once both its arms have some."""
    if not {claim.first, claim.second} <= arms.keys():
        return None
    first, second = arms[claim.first].top1, arms[claim.second].top1
    error = None
    if first.spread is not None and second.spread is not None:
        variance = sum(
            each.spread**2 / len(each.by_seed)
            for each in (first, second)
            if each.spread is not None
        )
        error = NUM_ERRORS * math.sqrt(variance)
    return Finding(
        claim=claim,
        difference=first.mean - second.mean,
        error=error,
        at_chance=max(first.mean, second.mean) <= ABOVE_CHANCE * 100 / num_classes,
    )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A study with what is done of it."""

    study: Study
    seeds: tuple[int, ...]
    arms: dict[str, Arm]
    """Those with at least one finished run."""
    num_classes: int
    """That all arms tell apart."""
    left_out: tuple[str, ...] = ()
    """The runs that failed, each with its reason."""

    @property
    def findings(self) -> list[Finding]:
        """What is published beside what was found."""
        found = (
            find(claim, self.arms, self.num_classes) for claim in self.study.claims
        )
        return [finding for finding in found if finding is not None]

    @property
    def num_missing(self) -> int:
        """Runs that are still to be done."""
        done = sum(len(arm.results) for arm in self.arms.values())
        return len(self.study.arms) * len(self.seeds) - done


def run_folder(folder: Path, recipe: Recipe, seed: int) -> Path:
    """Where a run lives: by its recipe, so that studies share the arms they share."""
    return folder / RUNS / f"{recipe.name}-seed{seed}"


def finished(folder: Path, recipe: Recipe, seed: int) -> dict[str, Any] | None:
    """What a run came to, if it is of this very recipe and at its end."""
    place = RunFolder(run_folder(folder, recipe, seed))
    result = place.finished()
    return None if place.changes(replace(recipe, seed=seed)) else result


def gather(
    study: Study,
    seeds: Sequence[int],
    folder: Path,
    costs: Mapping[str, Cost],
    num_classes: int,
    failed: Mapping[tuple[str, int], str],
) -> Outcome:
    """All that is done of a study, and why the runs of some arms and seeds are not."""
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
    # Another process may have trained meanwhile what was left to it.
    left_out = tuple(
        f"`{name}`, seed {seed}: {reason}"
        for (name, seed), reason in failed.items()
        if name not in arms or seed not in arms[name].results
    )
    return Outcome(
        study=study,
        seeds=tuple(seeds),
        arms=arms,
        num_classes=num_classes,
        left_out=left_out,
    )
