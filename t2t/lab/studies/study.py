"""A study: one question, the arms that answer it, and what papers found."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from t2t.errors import UserError, suggest
from t2t.training.recipe import Recipe

ALIKE = 0.3
"""Points of accuracy below which two published numbers are taken for alike."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What was published of two arms, to be held against our own numbers."""

    first: str
    second: str
    where: str
    """The paper, and its table or figure."""
    published: tuple[float, float] | None = None
    """Their accuracies; None where they were said to be alike without numbers."""

    @property
    def difference(self) -> float:
        """How much better the first was, in points."""
        if self.published is None:
            return 0.0
        return self.published[0] - self.published[1]

    @property
    def relation(self) -> Literal["better", "worse", "alike"]:
        """What the first was, beside the second."""
        if abs(self.difference) <= ALIKE:
            return "alike"
        return "better" if self.difference > 0 else "worse"


@dataclass(frozen=True, kw_only=True)
class Study:
    """Recipes that differ in one thing, trained alike and set side by side."""

    name: str
    question: str
    paper: str
    """What papers say about it, in a sentence or two."""
    arms: dict[str, Recipe]
    claims: tuple[Claim, ...] = ()
    notes: str = ""
    """How the arms were made comparable."""
    against_cost: bool = False
    """Draws accuracy against parameters, MACs and speed instead of arm by arm."""

    def __post_init__(self) -> None:
        """Holds claims to the arms there are, and arms to names of their own."""
        for claim in self.claims:
            for arm in (claim.first, claim.second):
                if arm not in self.arms:
                    raise ValueError(f"{self.name} claims something of no arm: {arm}")
        named: dict[str, Recipe] = {}
        for arm, recipe in self.arms.items():
            if named.setdefault(recipe.name, recipe) != recipe:
                raise UserError(
                    f"The recipe of {self.name}'s arm {arm} is named {recipe.name}, as "
                    "another arm's is, and runs are named by it; give it another name."
                )

    def changed(self, change: Callable[[Recipe], Recipe]) -> "Study":
        """The same study with every arm's recipe changed."""
        return replace(
            self, arms={name: change(recipe) for name, recipe in self.arms.items()}
        )

    def chosen(self, only: tuple[str, ...]) -> tuple[str, ...]:
        """The arms that were asked for, all where none was."""
        for name in only:
            if name not in self.arms:
                raise UserError(
                    f"{self.name} has no arm {name!r}.{suggest(name, self.arms)}"
                )
        return tuple(name for name in self.arms if not only or name in only)


def variation(base: Recipe, name: str, **model_args: object) -> Recipe:
    """A recipe with other choices in its model, under a name of its own."""
    return replace(
        base, name=f"{base.name}.{name}", model_args={**base.model_args, **model_args}
    )
