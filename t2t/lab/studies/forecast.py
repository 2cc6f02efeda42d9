"""Time and cost of a study before it is trained."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from t2t.lab.studies.results import ModelCost, costs_of, finished
from t2t.lab.studies.study import Study
from t2t.training.forecast.plan import plan
from t2t.training.loaders import open_data

GPU = "H200"


@dataclass(frozen=True)
class DataSize:
    """Numbers of training images, validation images and classes."""

    train: int
    val: int
    classes: int


def data_size(study: Study) -> DataSize:
    """The size of a study's data after the holdout; CIFAR-10 is not downloaded."""
    recipe = next(iter(study.arms.values()))
    if recipe.data == "cifar10":
        held = recipe.holdout
        return DataSize(max(0, 50_000 - held), held or 10_000, 10)
    splits = open_data(recipe)
    return DataSize(len(splits.train), len(splits.val), len(splits.train.classes))


@dataclass(frozen=True, kw_only=True)
class ArmForecast:
    """Time and cost of one arm."""

    arm: str
    recipe: str
    model: str
    cost: ModelCost
    epochs: int
    num_runs: int
    num_done: int
    hours: float
    """Per run: the mean of finished runs, else predicted for one GPU."""
    petamacs: float
    """MACs of all runs in 10¹⁵; a backward pass counts as two forward passes."""

    @property
    def is_measured(self) -> bool:
        """Whether the hours come from finished runs."""
        return self.num_done > 0

    @property
    def num_left(self) -> int:
        """The number of runs left to do."""
        return self.num_runs - self.num_done

    @property
    def hours_left(self) -> float:
        """The hours of the runs left to do."""
        return self.num_left * self.hours


def forecast(
    study: Study,
    seeds: Sequence[int],
    folder: Path,
    only: tuple[str, ...] = (),
) -> list[ArmForecast]:
    """Time and cost of every arm, from finished runs or as docs/scaling.md predicts."""
    size = data_size(study)
    costs = costs_of(study, size.classes)
    rows = []
    for name in study.chosen(only):
        recipe, cost = study.arms[name], costs[name]
        predicted = plan(
            recipe,
            1,
            gpu=GPU,
            num_images=size.train,
            num_validation=size.val,
            parameters=cost.parameters,
            gmacs=cost.macs / 1e9,
        )
        results = [finished(folder, recipe, seed) for seed in seeds]
        minutes = [each["train_minutes"] for each in results if each is not None]
        num_images = predicted.steps * recipe.batch_size
        rows.append(
            ArmForecast(
                arm=name,
                recipe=recipe.name,
                model=recipe.model,
                cost=cost,
                epochs=recipe.epochs,
                num_runs=len(seeds),
                num_done=len(minutes),
                hours=statistics.fmean(minutes) / 60 if minutes else predicted.hours,
                petamacs=len(seeds) * 3 * cost.macs * num_images / 1e15,
            )
        )
    return rows
