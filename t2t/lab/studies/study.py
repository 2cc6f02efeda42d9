"""A study: a question, the recipes (arms) that answer it, and published results."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from t2t.errors import UserError, suggest
from t2t.tasks.base import Metric
from t2t.tasks.registry import primary_metric
from t2t.training.recipe import Recipe

ALIKE = 0.3
"""Percentage points up to which two published accuracies count as alike."""


@dataclass(frozen=True)
class Claim:
    """A published comparison of two arms."""

    first: str
    second: str
    where: str
    """The paper, and its table or figure."""
    published: tuple[float, float] | None = None
    """Their accuracies; None if published as alike without numbers."""

    @property
    def difference(self) -> float:
        """Accuracy of the first minus the second, in percentage points."""
        if self.published is None:
            return 0.0
        return self.published[0] - self.published[1]

    @property
    def relation(self) -> Literal["better", "worse", "alike"]:
        """How the first compares with the second."""
        if abs(self.difference) <= ALIKE:
            return "alike"
        return "better" if self.difference > 0 else "worse"


@dataclass(frozen=True, kw_only=True)
class Study:
    """Recipes that differ in one thing, trained alike and compared."""

    name: str
    question: str
    paper: str
    """The published results, in a sentence or two."""
    arms: dict[str, Recipe]
    claims: tuple[Claim, ...] = ()
    notes: str = ""
    """How the arms are made comparable."""
    against_cost: bool = False
    """Draws accuracy against parameters, MACs and speed instead of arm by arm."""

    def __post_init__(self) -> None:
        """Checks that claims name arms and that recipes have different names."""
        for claim in self.claims:
            for arm in (claim.first, claim.second):
                if arm not in self.arms:
                    raise ValueError(f"a claim of {self.name} names no arm: {arm}")
        named: dict[str, Recipe] = {}
        for arm, recipe in self.arms.items():
            if named.setdefault(recipe.name, recipe) != recipe:
                raise UserError(
                    f"The recipe of {self.name}'s arm {arm} is named {recipe.name}, "
                    "like another arm's; run folders are named by it, so rename it."
                )

    @property
    def metric(self) -> Metric:
        """What the arms are compared by: the primary metric of their tasks."""
        metrics = {
            metric.name: metric
            for metric in (primary_metric(each.task) for each in self.arms.values())
        }
        if len(metrics) > 1:
            raise UserError(
                f"The arms of {self.name} have different primary metrics "
                f"({', '.join(metrics)}) and cannot be compared; give them tasks with "
                "the same one."
            )
        return next(iter(metrics.values()))

    def changed(self, change: Callable[[Recipe], Recipe]) -> "Study":
        """The same study with every arm's recipe changed."""
        return replace(
            self, arms={name: change(recipe) for name, recipe in self.arms.items()}
        )

    def chosen(self, only: tuple[str, ...]) -> tuple[str, ...]:
        """The names of the chosen arms, or of all."""
        for name in only:
            if name not in self.arms:
                raise UserError(
                    f"{self.name} has no arm {name!r}.{suggest(name, self.arms)}"
                )
        return tuple(name for name in self.arms if not only or name in only)


def variation(base: Recipe, name: str, **model_args: object) -> Recipe:
    """The recipe with other model arguments and its own name."""
    return replace(
        base, name=f"{base.name}.{name}", model_args={**base.model_args, **model_args}
    )
