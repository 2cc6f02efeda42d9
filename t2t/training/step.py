"""One step of training: from a batch to changed weights, or to unchanged ones."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from t2t.data.augment import augment
from t2t.data.draws import Draws
from t2t.data.order import Batch
from t2t.training.evaluate import autocast
from t2t.training.machine import PRECISIONS, Machine
from t2t.training.objectives import build_objective
from t2t.training.parallel import (
    Processes,
    batch_statistics,
    share_statistics,
    sum_over_all,
    sync_gradients,
)
from t2t.training.recipe import Recipe
from t2t.training.run import Run, update_average


class Outcome(NamedTuple):
    """What came of a step."""

    loss: float
    gradient_norm: float
    stepped: bool
    """False where the loss or the gradient was not finite, so nothing was changed."""


class Stepper:
    """Takes a run's steps, each a function of the run, the batch and (seed, step)."""

    def __init__(
        self,
        recipe: Recipe,
        machine: Machine,
        team: Processes,
        run: Run,
        num_classes: int,
    ) -> None:
        self.recipe, self.machine, self.team, self.run = recipe, machine, team, run
        self.num_classes = num_classes
        self.precision = PRECISIONS[machine.precision or "fp32"]
        self.objective = build_objective(recipe, team.device, num_classes)
        compiled = bool(machine.compile)
        self.augment = torch.compile(augment, fullgraph=True) if compiled else augment
        self.forward = torch.compile(run.model) if compiled else run.model
        self.statistics = batch_statistics(run.plain)

    def train_step(self, batch: Batch) -> Outcome:
        """One step of the optimizers; left out where the gradient is not finite."""
        run, recipe, team = self.run, self.recipe, self.team
        torch.manual_seed(step_seed(recipe.seed, run.step, team.rank))
        draws = Draws.of(recipe.seed, run.step, batch.keys)
        images, targets = self.augment(
            batch.images, batch.labels, draws, recipe.augmentation, self.num_classes
        )
        size = self.machine.micro_batch or len(images)
        parts = list(zip(images.split(size), targets.split(size), strict=True))
        run.model.train()
        share_statistics(self.statistics, team)
        statistics = [kept.clone() for kept in self.statistics]
        total = torch.zeros((), device=team.device)
        for number, (some, wanted) in enumerate(parts, start=1):
            sync_gradients(run.model, number == len(parts))
            with autocast(team.device, self.precision):
                loss = self.objective(self.forward, some, wanted)
            share = len(some) / len(images)
            run.scaler.scale(loss * share).backward()
            total += loss.detach() * share
        norm = self.gradient_norm()
        total = sum_over_all(total, team) / team.world_size
        loss_now, norm_now = torch.stack([total, norm]).tolist()
        stepped = math.isfinite(loss_now) and math.isfinite(norm_now)
        for optimizer in run.optimizers:
            if stepped:
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        run.scaler.update()
        run.step += 1
        if stepped:
            update_average(run, recipe.average)
        else:
            run.num_skipped += 1
            for now, before in zip(self.statistics, statistics, strict=True):
                now.copy_(before)
        return Outcome(loss_now, norm_now, stepped)

    def gradient_norm(self) -> Tensor:
        """The norm of the gradient, clipped where the recipe says so."""
        run = self.run
        for optimizer in run.optimizers:
            run.scaler.unscale_(optimizer)
        limit = self.recipe.optimizer.clip_norm or float("inf")
        norm = nn.utils.clip_grad_norm_(run.model.parameters(), limit, foreach=True)
        full = getattr(norm, "full_tensor", None)
        return full() if full is not None else norm


def step_seed(seed: int, step: int, rank: int) -> int:
    """One number for what a step draws on its own: dropout and stochastic depth."""
    return ((seed * 1_000_003 + step) * 1_000_003 + rank) % 2**63
