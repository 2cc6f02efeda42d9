"""Judging a trained model by some data, its own or other."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from t2t.data.batches import EvaluationBatches, LoaderOptions, evaluation_batches
from t2t.data.crops import CenterCrop
from t2t.data.decoding.damage import Damage
from t2t.data.decoding.headers import DEFAULT_MAX_PIXELS
from t2t.data.sources import Source, Subset, open_source
from t2t.data.sources.opening import find_splits
from t2t.errors import UserError, choose
from t2t.models.checkpoint_io.resolve import FILE_NAME
from t2t.models.trained import TrainedModel, load_trained
from t2t.shapes import Images, Labels
from t2t.tasks.class_matching import match_classes, relabelled
from t2t.tasks.classify import score_logits
from t2t.training.distributed import (
    World,
    all_gather_union,
    check_same_on_all,
    init_distributed,
)
from t2t.training.evaluation.evaluate import Normalize, evaluate
from t2t.training.evaluation.real_labels import RealLabels
from t2t.training.evaluation.report import EvalReport
from t2t.training.evaluation.score import Score
from t2t.training.loaders import open_data
from t2t.training.recipe import Recipe
from t2t.training.run_files import RECIPE
from t2t.training.runtime import PRECISIONS
from t2t.training.saved_run import read_recipe, same_data
from t2t.training.threads import use_free_cores


def evaluate_model(
    path: str | os.PathLike[str],
    *,
    data: str | Path | None = None,
    split: str | None = None,
    batch_size: int = 256,
    device: str | None = None,
    precision: str | None = None,
    model: str | None = None,
    real: bool = False,
    damage_limit: int = 100,
    max_pixels: int = DEFAULT_MAX_PIXELS,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> EvalReport | None:
    """Evaluates a run or weights on their own data or on other.

    Under torchrun all processes share the work and the first one gets the report, the
    others None. `progress` is told how many images of how many are done.
    """
    with init_distributed(device) as world, use_free_cores(world.device):
        precision = precision or ("bf16" if world.device.type == "cuda" else "fp32")
        choose("precision", precision, PRECISIONS)
        trained = load_trained(path, model=model)
        chosen = find_data(trained, recipe_beside(path), data, split)
        numbers, notes = match_classes(
            chosen.source.classes, trained.class_names, chosen.where
        )
        source = relabelled(chosen.source, numbers, trained.class_names)
        reassessed = (
            RealLabels(source, trained.class_names, chosen.where) if real else None
        )
        damage = Damage(damage_limit)
        batch_size = min(batch_size, len(source))
        batches = open_batches(trained, source, batch_size, world, damage, max_pixels)
        network = trained.model.to(world.device)
        prepare = Normalize(trained.mean, trained.std)
        num_classes = len(trained.class_names)
        watch = Stopwatch(world, len(source), progress)
        dtype = PRECISIONS[precision]
        values = evaluate(
            network, batches, prepare, classify, world, dtype, watch.advance
        )
        score = Score.of(values, num_classes)
        rate = watch.images_per_second()
        real_score = None if reassessed is None else reassessed.score(score.predictions)
        damaged = all_gather_union(damage.names, world)
        if not world.is_main:
            return None
        return EvalReport(
            trained=trained,
            data=chosen.where,
            split=chosen.split,
            score=score,
            real=real_score,
            images_per_second=rate,
            device=device_name(world),
            precision=precision,
            batch_size=batch_size,
            damaged=damaged,
            notes=(*trained.notes, *chosen.notes, *chosen.source.notes, *notes),
        )


def open_batches(
    trained: TrainedModel,
    source: Source,
    batch_size: int,
    world: World,
    damage: Damage,
    max_pixels: int,
) -> EvaluationBatches:
    """All images once, as the model was trained to see them."""
    shared = {
        "model": trained.name,
        "classes": dict(enumerate(trained.class_names)),
        "num_images": len(source),
        "batch_size": batch_size,
    }
    check_same_on_all(world, shared)
    return evaluation_batches(
        source,
        batch_size=batch_size,
        crop=CenterCrop(size=trained.image_size, fraction=trained.crop_fraction),
        device=world.device,
        rank=world.rank,
        world_size=world.size,
        channels=trained.channels,
        damage=damage,
        loader_options=LoaderOptions(max_pixels=max_pixels),
    )


def classify(model: nn.Module, images: Images, labels: Labels) -> dict[str, Tensor]:
    """The values of every image under a classifier."""
    return score_logits(model(images).float(), labels)


class Stopwatch:
    """Counts images, and times batches from the end of the first, when all is warm."""

    def __init__(
        self, world: World, total: int, progress: Callable[[int, int], None]
    ) -> None:
        self.world, self.total, self.progress = world, total, progress
        self.started: float | None = None
        self.num_first = self.num_done = 0

    def advance(self, num_images: int) -> None:
        """Takes note of a batch."""
        self.num_done += num_images
        if self.world.is_main:
            # The last batch is filled up with images that do not count.
            self.progress(min(self.num_done, self.total), self.total)
        if self.started is None:
            self.wait()
            self.started = time.perf_counter()
            self.num_first = num_images

    def images_per_second(self) -> float | None:
        """The rate of all batches but the first."""
        self.wait()
        if self.started is None or self.num_done == self.num_first:
            return None
        seconds = time.perf_counter() - self.started
        return (self.num_done - self.num_first) / seconds

    def wait(self) -> None:
        """Lets the device finish what it was given."""
        if self.world.device.type == "cuda":
            torch.cuda.synchronize(self.world.device)


@dataclass(frozen=True)
class Chosen:
    """The images to judge by."""

    source: Source
    where: str
    split: str
    notes: tuple[str, ...] = ()


def find_data(
    trained: TrainedModel,
    recipe: Recipe | None,
    data: str | Path | None,
    split: str | None,
) -> Chosen:
    """The images asked for, or those that the run was judged by.

    Data in one piece that the run split is split the same way again, so that none of
    it was trained on; other data in one piece is taken whole.
    """
    own = trained.data if recipe is None else recipe.data
    seed = trained.seed if recipe is None else recipe.seed
    where = own if data is None else str(data)
    if where is None:
        raise UserError(
            f"{trained.path} does not say what it was trained on: give --data."
        )
    try:
        splits = find_splits(where).openers
    except UserError as error:
        if data is not None:
            raise
        raise UserError(
            f"{error} {trained.path} was trained on it: give --data."
        ) from (error)
    is_own = own is not None and same_data(where, own)
    if split is None and "all" in splits and not is_own:
        note = f"{where} comes in one piece, so all of it is used; --split val takes a "
        return Chosen(splits["all"](), where, "all", (note + "tenth.",))
    split = split or "val"
    if recipe is not None and is_own and recipe.holdout and split in ("train", "val"):
        held = open_data(recipe)
        source = held.train if split == "train" else held.val
    else:
        source = open_source(where, split, seed=seed)
    notes = how_changed(source, trained, where) if is_own and split == "val" else ()
    return Chosen(source, where, split, notes)


def how_changed(source: Source, trained: TrainedModel, where: str) -> tuple[str, ...]:
    """A sentence where other images are held out than in training, if any are."""
    known = trained.evaluated_on
    if not isinstance(source, Subset) or known in (None, source.fingerprint()):
        return ()
    return (
        f"{where} has changed since training and is split anew: some of the images "
        "may be those that the model was trained on.",
    )


def recipe_beside(path: str | os.PathLike[str]) -> Recipe | None:
    """The recipe of a run folder, given as such or by the model in it."""
    run_folder = Path(path).expanduser()
    folder = run_folder.parent if run_folder.name == FILE_NAME else run_folder
    return read_recipe(folder) if (folder / RECIPE).is_file() else None


def device_name(world: World) -> str:
    """The device in words."""
    kind = world.device.type
    name = torch.cuda.get_device_name(world.device) if kind == "cuda" else kind
    return f"{world.size} × {name}" if world.is_distributed else name
