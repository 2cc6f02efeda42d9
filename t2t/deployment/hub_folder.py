"""A folder for timm and the Hugging Face hub, with a model card."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from torch import Tensor

from t2t.deployment.accuracy import top1_of
from t2t.deployment.check_images import CheckImages, LabelledImages
from t2t.deployment.graph import ExportedGraph
from t2t.deployment.model_card import KnownAccuracy, hub_card
from t2t.deployment.options import FOLDER_SUFFIX
from t2t.deployment.parity import Parity
from t2t.deployment.timm_folder import (
    CARD_NAME,
    check_slots,
    compare_with_timm,
    write_config,
)
from t2t.deployment.weights_file import write_and_compare
from t2t.models.checkpoint_io.resolve import FILE_NAME
from t2t.models.trained import TrainedModel
from t2t.training.evaluation.evaluation_data import recipe_beside
from t2t.training.saved_run import find_result


def write_hub_folder(
    trained: TrainedModel,
    folder: Path,
    license_name: str,
    checked: CheckImages,
    labelled: LabelledImages | None,
    progress: Callable[[int, int], None],
    *,
    measure: bool,
) -> tuple[Parity, str]:
    """Writes and checks the folder; the parity in timm, and the accuracy in words."""
    check_slots(trained)
    folder.mkdir()
    # Who loads the folder has the data elsewhere, if at all.
    shared = replace(trained, data=trained.data_name, labels={})
    write_and_compare(shared, folder / FILE_NAME, checked)
    write_config(trained, folder, license_name)
    parity = compare_with_timm(trained, folder, checked)
    accuracy = None if measure else accuracy_of_run(trained)
    if accuracy is None and labelled is not None and not trained.is_multilabel:
        accuracy = measured(trained, labelled, progress)
    card = hub_card(
        trained,
        folder.name.removesuffix(FOLDER_SUFFIX),
        license_name,
        accuracy,
        recipe_beside(trained.path),
        sum(weight.numel() for weight in trained.model.parameters()),
    )
    (folder / CARD_NAME).write_text(card, encoding="utf-8")
    if accuracy is None:
        return (
            parity,
            "The model card states no accuracy: give labelled images (--data).",
        )
    return parity, f"Top-1 {accuracy.top1:.2f} % on {accuracy.images} (model card)."


def accuracy_of_run(trained: TrainedModel) -> KnownAccuracy | None:
    """The accuracy at the end of the run; None if the weights are not of a run."""
    recipe = recipe_beside(trained.path)
    if recipe is None:
        return None
    folder = Path(trained.path).expanduser()
    result = find_result(folder if folder.is_dir() else folder.parent)
    top1 = (result or {}).get("top1")
    if not isinstance(top1, float):
        return None
    where = f"all validation images of {Path(recipe.data).name}"
    return KnownAccuracy(top1, where)


def measured(
    trained: TrainedModel,
    labelled: LabelledImages,
    progress: Callable[[int, int], None],
) -> KnownAccuracy:
    """The accuracy on labelled images."""
    graph = ExportedGraph(trained, with_preprocessing=False, multilabel=False)

    def run(pixels: Tensor) -> np.ndarray:
        return graph.outputs_for(pixels).numpy()

    top1 = top1_of({"model": run}, trained, labelled, progress)["model"]
    return KnownAccuracy(top1, labelled.where)
