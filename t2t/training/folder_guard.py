"""Recreates a run folder that is removed or moved while training."""

from t2t.errors import UserError
from t2t.training.distributed import World, broadcast_from_main
from t2t.training.logging.run_logger import RunLogger
from t2t.training.model_saver import ModelSaver
from t2t.training.run_folder import RunFolder
from t2t.training.state import TrainState


class FolderGuard:
    """Checks that the run folder still exists; all processes call it together."""

    def __init__(
        self,
        run_folder: RunFolder,
        world: World,
        logger: RunLogger,
        model_saver: ModelSaver,
    ) -> None:
        self.run_folder, self.world = run_folder, world
        self.logger, self.model_saver = logger, model_saver

    def check(self, state: TrainState) -> None:
        """Recreates the folder if needed; if that fails, the run ends.

        Its model is then saved elsewhere.
        """
        problem = broadcast_from_main(self.world, self.restore)
        if not problem:
            return
        keeps_best = self.model_saver.recipe.keep == "best"
        model = self.model_saver.gather(state, best=keeps_best)
        if model is not None:
            self.model_saver.save_elsewhere(model)
        path = broadcast_from_main(self.world, lambda: self.model_saver.elsewhere)
        saved = f"its model was saved to {path}" if path else "nothing could be saved"
        raise UserError(
            f"{self.run_folder.path} was removed or moved while training, and cannot "
            f"be recreated: {problem} Training stopped after step {state.step:,}; "
            f"{saved}."
        )

    def restore(self) -> str:
        """Restores what is missing; returns the error message if that fails."""
        folder, logger = self.run_folder, self.logger
        if not folder.is_lost():
            for path in folder.restore_json_files() + logger.metrics_log.restore():
                logger.warn(f"{path} was removed while training; it was written again.")
            return ""
        try:
            folder.recreate()
        except UserError as error:
            return str(error)
        logger.metrics_log.recreate()
        logger.warn(
            f"{folder.path} or a file in it was removed or moved while training; it "
            "was recreated, and training continues."
        )
        return ""
