"""The images that a model was trained on, or would be."""

from contextlib import suppress
from dataclasses import dataclass

from t2t.data.sources import Source, open_splits
from t2t.data.sources.find_splits import find_splits
from t2t.data.sources.torchvision_sets import no_downloads
from t2t.errors import UserError
from t2t.tasks.class_matching import match_classes, relabelled
from t2t.training.evaluation.evaluation_data import recipe_beside
from t2t.training.evaluation.report import EvalReport
from t2t.training.loaders import open_data
from t2t.training.saved_run import same_data


@dataclass(frozen=True)
class TrainingImages:
    """The training images, or why there are none."""

    source: Source | None
    note: str


def find_training_images(report: EvalReport) -> TrainingImages:
    """The training images of the evaluated data, or else those of the model.

    They have the class numbers of the model, and none of them is evaluated.
    """
    trained = report.trained
    recipe = recipe_beside(trained.path)
    own = trained.data if recipe is None else recipe.data
    is_own = own is not None and same_data(report.data, own)
    where = report.data if is_own or has_train(report.data) else own
    if report.split == "all" and not is_own:
        where = own
    if where is None:
        return TrainingImages(
            None, f"{trained.path} does not name its training images."
        )
    try:
        with no_downloads():
            if recipe is not None and same_data(where, recipe.data):
                source = open_data(recipe).train
            else:
                source = open_splits(where, seed=trained.seed).train
        numbers, _ = match_classes(source.classes, trained.class_names, where)
    except UserError as error:
        return TrainingImages(None, f"The training images are not used: {error}")
    if source.is_multilabel:
        return TrainingImages(None, f"The images of {where} have several labels.")
    return TrainingImages(
        relabelled(source, numbers, trained.class_names), f"{where} (train)"
    )


def has_train(where: str) -> bool:
    """Whether data has a training split."""
    with suppress(UserError), no_downloads():
        return "train" in find_splits(where).openers
    return False
