"""The train state before the first step: model, initial weights, EMA, optimizers."""

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from t2t.data.sources.label_sets import LabelSets
from t2t.errors import UserError
from t2t.models.checkpoint_io.adapt import shorten
from t2t.models.checkpoint_io.checkpoints import read_checkpoint
from t2t.models.checkpoint_io.checksum import tensors_checksum
from t2t.models.create import create_model
from t2t.models.vit import VisionTransformer
from t2t.models.weights import LoadReport, load_checkpoint
from t2t.tasks import TaskContext, build_task, task_class
from t2t.training.distributed import World, parallelize, parallelize_copy
from t2t.training.optim import build_optimizers
from t2t.training.parameter_groups import head_parameters
from t2t.training.recipe import EMA, Recipe
from t2t.training.runtime import RESIDUALS, Runtime
from t2t.training.state import TrainState
from t2t.training.threads import Threads, use_threads


def new_state(
    recipe: Recipe,
    runtime: Runtime,
    world: World,
    num_classes: int,
    class_names: Sequence[str] | None = None,
    label_sets: LabelSets | None = None,
    class_weights: Sequence[float] = (),
) -> TrainState:
    """The state at step 0, the same in every process.

    The data's `class_names` decide whether the head of the recipe's weights is kept;
    `label_sets` are the data's, if images have several labels, and `class_weights` are
    those of the loss.
    """
    check_micro_batch(recipe, runtime, world)
    torch.manual_seed(recipe.seed)
    has_labels = num_classes > 0
    if not task_class(recipe.task).needs_labels:
        num_classes, class_names = 0, None
    model = build_model(recipe, num_classes).to(world.device)
    if isinstance(model, VisionTransformer):
        model.encoder.set_residual_dtype(RESIDUALS[runtime.residual])
    loaded = None
    if recipe.weights is not None:
        loaded = load_initial_weights(model, recipe, class_names)
    num_frozen = freeze_body(model, recipe) if recipe.freeze else 0
    context = TaskContext(
        num_classes=num_classes,
        has_labels=has_labels,
        class_names=tuple(class_names or ()),
        label_sets=label_sets,
        class_weights=tuple(class_weights),
        data=recipe.data,
        image_size=recipe.image_size,
        mean=recipe.augmentation.mean,
        std=recipe.augmentation.std,
        model_name=recipe.model,
        freeze=recipe.freeze,
        keep_tokens=recipe.token_dropping.keep_at(0.0),
        resizes=bool(recipe.progressive_resizing.ends),
    )
    task = build_task(recipe.task, recipe.task_args, model, context).to(world.device)
    ema = new_ema(model, recipe.ema)
    if ema is not None:
        ema = parallelize_copy(ema, runtime.parallelism, world)
    trained = parallelize(task, runtime.parallelism, world)
    scaler = torch.amp.GradScaler(
        world.device.type, enabled=runtime.precision == "fp16"
    )
    state = TrainState(trained, ema, [], scaler, loaded=loaded, num_frozen=num_frozen)
    state.optimizers = build_optimizers(
        model, recipe, others=task.own_modules().values()
    )
    return state


def check_micro_batch(recipe: Recipe, runtime: Runtime, world: World) -> None:
    """Raises an error for micro-batches of a task that compares all images."""
    per_process = recipe.batch_size // world.size
    num_images = runtime.micro_batch or per_process
    if task_class(recipe.task).needs_whole_batch and num_images < per_process:
        raise UserError(
            f"task={recipe.task} compares all images of a batch, so --micro-batch "
            f"{num_images} would change its loss; leave it out, and if the memory does "
            f"not suffice, set batch_size lower than {recipe.batch_size} or use more "
            "processes."
        )


def load_initial_weights(
    model: nn.Module, recipe: Recipe, class_names: Sequence[str] | None
) -> LoadReport:
    """Loads a recipe's weights; a head for other classes starts as zeros."""
    weights = recipe.weights
    assert weights is not None
    checkpoint = read_checkpoint(weights)
    checksum = tensors_checksum(checkpoint.tensors)
    if recipe.weights_checksum not in (None, checksum):
        raise UserError(
            f"weights={weights} are not those of the recipe any more (checksum "
            f"{checksum} instead of {recipe.weights_checksum}): restore them, or set "
            "weights_checksum=none to start from these."
        )
    loaded = load_checkpoint(model, checkpoint, class_names)
    zero_heads(model, loaded.new_heads)
    if loaded.non_finite:
        raise UserError(
            f"weights={weights} contain NaN or infinity in "
            f"{shorten([*loaded.non_finite])}; use another file."
        )
    return replace(loaded, checksum=checksum)


@torch.no_grad()
def zero_heads(model: nn.Module, heads: Sequence[str]) -> None:
    """Zeroes new heads, as ViT's fine-tuning does.

    Otherwise their random outputs would disturb the trained layers at first.
    """
    for name, parameter in model.named_parameters():
        if name.startswith(tuple(f"{head}." for head in heads)):
            parameter.zero_()


def freeze_body(model: nn.Module, recipe: Recipe) -> int:
    """Freezes all but the head; returns the number of parameters that it froze."""
    heads = {id(parameter) for parameter in head_parameters(model)}
    if not heads:
        raise UserError(
            f"freeze=true trains only the head, which {recipe.model} with task="
            f"{recipe.task} does not have; leave out --freeze."
        )
    num_frozen = 0
    for parameter in model.parameters():
        if parameter.requires_grad and id(parameter) not in heads:
            parameter.requires_grad_(False)
            num_frozen += parameter.numel()
    return num_frozen


def build_model(recipe: Recipe, num_classes: int) -> nn.Module:
    """The model of a recipe, untrained."""
    # Beside processes that decode or compile, threads would wait for each other.
    with use_threads(Threads(1, "to draw weights")):
        return create_model(
            recipe.model,
            num_classes=num_classes,
            image_size=recipe.image_size,
            in_channels=recipe.channels,
            drop_path=recipe.drop_path,
            **recipe.model_args,
        )


def new_ema(model: nn.Module, settings: EMA) -> nn.Module | None:
    """A copy of the model for the EMA of its weights; None if the recipe has none."""
    if settings.decay == 0:
        return None
    return copy.deepcopy(model).eval().requires_grad_(False)
