"""What training minimises: functions from a model and a batch to a loss."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from t2t.errors import UserError, choose
from t2t.shapes import Images, Logits
from t2t.training.recipe import Recipe

Targets = Float[Tensor, "batch classes"]
Loss = Float[Tensor, ""]


@dataclass(frozen=True)
class Objective:
    """A loss and what it needs beside the model."""

    function: Callable[["Objective", nn.Module, Images, Targets], Loss]
    teacher: nn.Module | None = None
    weight: float = 1.0
    temperature: float = 1.0

    def __call__(self, model: nn.Module, images: Images, targets: Targets) -> Loss:
        return self.function(self, model, images, targets)

    @torch.no_grad()
    def teach(self, images: Images) -> Logits:
        """What the teacher says of the images."""
        assert self.teacher is not None
        return self.teacher(images)


def classify(
    given: Objective, model: nn.Module, images: Images, targets: Targets
) -> Loss:
    """Cross-entropy against the soft targets."""
    return F.cross_entropy(model(images), targets)


def distill_soft(
    given: Objective, model: nn.Module, images: Images, targets: Targets
) -> Loss:
    """Cross-entropy plus the divergence from the teacher's softened opinion."""
    logits = model(images)
    divergence = soft_divergence(logits, given.teach(images), given.temperature)
    return F.cross_entropy(logits, targets) + given.weight * divergence


def distill_token_soft(
    given: Objective, model: nn.Module, images: Images, targets: Targets
) -> Loss:
    """The class token learns the labels, the other the teacher's softened opinion."""
    logits, distilled = model(images, apart=True)
    divergence = soft_divergence(distilled, given.teach(images), given.temperature)
    return F.cross_entropy(logits, targets) + given.weight * divergence


def distill_token_hard(
    given: Objective, model: nn.Module, images: Images, targets: Targets
) -> Loss:
    """The class token learns the labels, the other the teacher's first choice."""
    logits, distilled = model(images, apart=True)
    choice = given.teach(images).argmax(dim=1)
    return (F.cross_entropy(logits, targets) + F.cross_entropy(distilled, choice)) / 2


def soft_divergence(student: Logits, teacher: Logits, temperature: float) -> Loss:
    """KL(teacher ‖ student) at a temperature, scaled to keep the gradient's size."""
    return F.kl_div(
        F.log_softmax(student / temperature, dim=1),
        F.log_softmax(teacher / temperature, dim=1),
        reduction="batchmean",
        log_target=True,
    ) * (temperature**2)


OBJECTIVES = {
    "classify": classify,
    "distill_soft": distill_soft,
    "distill_token_soft": distill_token_soft,
    "distill_token_hard": distill_token_hard,
}


def build_objective(recipe: Recipe, device: torch.device) -> Objective:
    """The objective of a recipe, with its teacher loaded where it has one."""
    function = choose("objective", recipe.objective, OBJECTIVES)
    if recipe.objective == "classify":
        return Objective(function)
    if recipe.teacher is None:
        raise UserError(
            f"objective={recipe.objective} needs a teacher; set teacher=PATH to the "
            "weights or the run folder of a trained model."
        )
    from t2t.models.weights import load

    teacher = load(recipe.teacher).to(device).eval().requires_grad_(False)
    return Objective(
        function, teacher, recipe.distillation_weight, recipe.distillation_temperature
    )
