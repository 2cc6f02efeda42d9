"""Pictures of what a task does with a few validation images."""

import torch

from t2t.data.batches import LoaderOptions, evaluation_batches
from t2t.data.sources import Subset
from t2t.errors import first_line
from t2t.shapes import Pixels
from t2t.tasks import Task
from t2t.tasks.checks import checked_pictures
from t2t.training.evaluation.evaluate import autocast
from t2t.training.loaders import center_crop
from t2t.training.run_files import PICTURES
from t2t.training.sharding import unsharded
from t2t.training.trainer import Trainer
from t2t.user_code import explain

NUM_IMAGES = 8


def draw_pictures(trainer: Trainer) -> None:
    """Draws the final model's pictures into the run folder, if the task has any."""
    if type(trainer.task).pictures is Task.pictures:
        return
    try:
        found = find_pictures(trainer)
        if not trainer.world.is_main or not found:
            return
        from t2t.analysis.picture_figure import draw_table  # needed at the end only

        draw_table(found, trainer.run_folder.path / PICTURES)
    except Exception as error:  # any kind, in a user's code: the run has finished
        why = explain(error) or first_line(error)
        trainer.logger.warn(f"{PICTURES} could not be drawn: {why}")


@torch.no_grad()
def find_pictures(trainer: Trainer) -> dict[str, Pixels]:
    """Pictures by title of a few validation images, the same in every process."""
    recipe, world, source = trainer.recipe, trainer.world, trainer.splits.val
    step = max(1, len(source) // NUM_IMAGES)
    chosen = Subset(source, range(0, len(source), step)[:NUM_IMAGES])
    (batch,) = evaluation_batches(
        chosen,
        batch_size=len(chosen),
        crop=center_crop(recipe),
        device=world.device,
        channels=recipe.channels,
        damage=trainer.damage,
        loader_options=LoaderOptions(
            resident=True, num_workers=1, max_pixels=trainer.runtime.max_pixels
        ),
    )
    task, model = trainer.task.eval(), trainer.state.final_model.eval()
    images = trainer.normalize(batch)
    precision = autocast(world.device, trainer.runtime.dtype)
    with unsharded(task), unsharded(model), precision:
        found = task.pictures(model, images)
        found = checked_pictures(task, found, len(images))
    return {title: each[batch.valid].cpu() for title, each in found.items()}
