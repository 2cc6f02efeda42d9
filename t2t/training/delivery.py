"""What a run delivers: its model, after every evaluation, and its result."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from t2t.data.sources import Splits
from t2t.errors import UserError
from t2t.models.vit import VisionTransformer
from t2t.models.weights import save
from t2t.training.folder import RunFolder
from t2t.training.parallel import Processes, full_state
from t2t.training.recipe import Recipe
from t2t.training.resume import checkpoints
from t2t.training.run import build_model


class Delivery:
    """Writes them into the run's folder; what fails is told, and nothing is lost."""

    def __init__(
        self,
        recipe: Recipe,
        team: Processes,
        place: RunFolder,
        splits: Splits,
        tell: Callable[[str], None],
    ) -> None:
        self.recipe, self.team, self.place = recipe, team, place
        self.splits, self.tell = splits, tell
        self.unsaved = ""
        """Why the last model could not be written, if it could not."""

    def save_model(self, model: nn.Module) -> None:
        """Writes the model; says why where it cannot."""
        recipe, classes = self.recipe, self.splits.train.classes
        state = full_state(model, self.team)
        if not self.team.leads:
            return
        with torch.device("meta"):
            whole = (
                VisionTransformer(model.config)  # whose positions came with weights
                if isinstance(model, VisionTransformer)
                else build_model(recipe, len(classes))
            )
        whole.load_state_dict(state, assign=True)
        try:
            save(
                whole,
                self.place.model,
                name=recipe.model,
                class_names=classes,
                extra={
                    "image_size": list(recipe.image_size),
                    "channels": recipe.channels,
                    "mean": list(recipe.augmentation.mean),
                    "std": list(recipe.augmentation.std),
                    "crop_fraction": recipe.crop.evaluation_fraction,
                    "data": recipe.data,
                    "seed": recipe.seed,
                    "judged_by": self.splits.val.fingerprint(),
                },
            )
            self.unsaved = ""
        except UserError as error:
            self.unsaved = str(error)
            self.tell(f"{error} Training goes on.")

    def finish(self, summary: dict[str, Any]) -> None:
        """Writes the result, which says that the run is at its end."""
        try:
            if self.unsaved:
                raise UserError(self.unsaved)
            self.place.finish(summary)
        except (OSError, UserError) as error:
            kept = "No checkpoint could be kept: make room, and train again."
            if checkpoints(self.place.checkpoints):
                kept = (
                    f"The last checkpoint stays in {self.place.checkpoints}; make "
                    "room, and the same command goes on from there."
                )
            reason = getattr(error, "strerror", None)
            why = f"{self.place.path} ({reason})." if reason else str(error)
            raise UserError(
                f"Training is done, but its result could not be written: {why} {kept}"
            ) from error
