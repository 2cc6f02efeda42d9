"""What training minimises: functions from a model and a batch to a loss."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from t2t.errors import UserError, choose
from t2t.models.weights import load_with_report
from t2t.models.zoo import OURS
from t2t.shapes import Images, Logits
from t2t.training.evaluation.class_matching import match_classes
from t2t.training.recipe import Recipe

# In the error of a batch norm that has nothing to take the deviation of.
ONE_VALUE = "Expected more than 1 value per channel"
Targets = Float[Tensor, "batch classes"]
Loss = Float[Tensor, ""]
Model = Callable[..., Any]
"""A module, or what torch.compile made of one."""


@dataclass(frozen=True)
class Objective:
    """A loss and what it needs beside the model."""

    function: Callable[["Objective", Model, Images, Targets], Loss]
    teacher: nn.Module | None = None
    weight: float = 1.0
    temperature: float = 1.0
    renormalise: tuple[Tensor, Tensor] | None = None
    """Scale and shift of our images for a teacher that normalises otherwise."""

    def __call__(self, model: Model, images: Images, targets: Targets) -> Loss:
        try:
            return self.function(self, model, images, targets)
        except ValueError as error:
            if ONE_VALUE not in str(error):
                raise
            raise UserError(
                f"The model's batch norms need more than {len(images)} image at once, "
                "or larger ones; set batch_size, --micro-batch or image_size higher."
            ) from error

    @torch.no_grad()
    def teach(self, images: Images) -> Logits:
        """What the teacher says of the images."""
        assert self.teacher is not None
        if self.renormalise is not None:
            scale, shift = self.renormalise
            images = images * scale + shift
        return self.teacher(images)


def classify(given: Objective, model: Model, images: Images, targets: Targets) -> Loss:
    """Cross-entropy against the soft targets."""
    return F.cross_entropy(model(images), targets)


def distill_soft(
    given: Objective, model: Model, images: Images, targets: Targets
) -> Loss:
    """Cross-entropy plus the divergence from the teacher's softened opinion."""
    logits = model(images)
    divergence = soft_divergence(logits, given.teach(images), given.temperature)
    return F.cross_entropy(logits, targets) + given.weight * divergence


def distill_token_soft(
    given: Objective, model: Model, images: Images, targets: Targets
) -> Loss:
    """The class token learns the labels, the other the teacher's softened opinion."""
    logits, distilled = model(images, apart=True)
    divergence = soft_divergence(distilled, given.teach(images), given.temperature)
    return F.cross_entropy(logits, targets) + given.weight * divergence


def distill_token_hard(
    given: Objective, model: Model, images: Images, targets: Targets
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


def check_token(recipe: Recipe) -> None:
    """Refuses a student without the token that its objective is for."""
    config = OURS.get(recipe.model)
    if config is not None and recipe.model_args.get("distilled", config.distilled):
        return
    name, ways = recipe.model, "set objective=distill_soft"
    if config is None:
        name += " of timm's"
    else:
        tokens = "model_args.distilled=true, model_args.class_token=true"
        ways += f", or {tokens} and model_args.pool=class"
    raise UserError(
        f"objective={recipe.objective} needs a distillation token, which {name} does "
        f"not have; {ways}."
    )


def build_objective(
    recipe: Recipe,
    device: torch.device,
    num_classes: int | None = None,
    classes: Sequence[str] = (),
) -> Objective:
    """The objective of a recipe, with its teacher loaded where it has one.

    A teacher is refused that does not know as many classes, or knows them as others.
    """
    function = choose("objective", recipe.objective, OBJECTIVES)
    if recipe.objective == "classify":
        return Objective(function)
    if recipe.teacher is None:
        raise UserError(
            f"objective={recipe.objective} needs a teacher; set teacher=PATH to the "
            "weights or the run folder of a trained model."
        )
    if "token" in recipe.objective:
        check_token(recipe)
    teacher, loaded = load_with_report(recipe.teacher)
    teacher = teacher.to(device).eval().requires_grad_(False)
    knows = getattr(teacher, "num_classes", num_classes)
    if num_classes is not None and knows != num_classes:
        raise UserError(
            f"The teacher {recipe.teacher} knows {knows} classes and the data has "
            f"{num_classes}; give a teacher that was trained on this data."
        )
    if classes and loaded.class_names:
        check_classes(recipe, classes, loaded.class_names)
    return Objective(
        function,
        teacher,
        recipe.distillation_weight,
        recipe.distillation_temperature,
        renormalisation(recipe, loaded.extra, device),
    )


def check_classes(
    recipe: Recipe, classes: Sequence[str], taught: Sequence[str]
) -> None:
    """Refuses a teacher that means other classes than the data by its numbers."""
    try:
        numbers, _ = match_classes(classes, taught, recipe.data)
    except UserError as error:
        raise UserError(f"The teacher {recipe.teacher} does not fit: {error}") from None
    if numbers.tolist() != list(range(len(taught))):
        raise UserError(
            f"The teacher {recipe.teacher} has the classes of {recipe.data} in another "
            "order; give a teacher that was trained on this data."
        )


def renormalisation(
    recipe: Recipe, teacher: Mapping[str, Any], device: torch.device
) -> tuple[Tensor, Tensor] | None:
    """From images normalised by a recipe to what its teacher was trained on."""

    def values(numbers: Sequence[float]) -> Tensor:
        return torch.tensor(numbers, device=device).reshape(1, -1, 1, 1)

    ours = recipe.augmentation
    mean, std = teacher.get("mean", ours.mean), teacher.get("std", ours.std)
    if (tuple(mean), tuple(std)) == (ours.mean, ours.std):
        return None
    scale = values(ours.std) / values(std)
    return scale, (values(ours.mean) - values(mean)) / values(std)
