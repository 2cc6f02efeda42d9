"""`--compile auto`: compiles the rest of a run if that saves time."""

from t2t.errors import UserError
from t2t.formatting import duration
from t2t.models.shards import is_sharded
from t2t.training.compile_policy import CompileDecision, seconds_saved
from t2t.training.distributed import broadcast_from_main
from t2t.training.kernel_compiling import KernelCompiler
from t2t.training.logging.run_logger import RunLogger
from t2t.training.logging.stage import stage
from t2t.training.prepare import rehearse
from t2t.training.run_folder import RunFolder
from t2t.training.step import Stepper

FAILED = "Whether to compile could not be recorded"


class AutoCompile:
    """Decides after the first epoch that was timed; a resume keeps the decision."""

    def __init__(
        self,
        decision: CompileDecision,
        stepper: Stepper,
        run_folder: RunFolder,
        logger: RunLogger,
    ) -> None:
        self.decision, self.stepper = decision, stepper
        self.run_folder, self.logger = run_folder, logger

    def resume(self) -> None:
        """Compiles the next step if the run has compiled its steps before."""
        from_step = self.decision.from_step
        if from_step is not None and self.stepper.state.step >= from_step:
            self.stepper.compile()
            # If it is sharded, it is no CUDA graph any more.
            self.stepper.set_phase(self.stepper.phase)

    def is_due(self) -> bool:
        """Whether the end of this epoch is where it decides, or has decided.

        It is the first one with a step that was timed after the warm-up. Sharded steps
        stay a CUDA graph, which compiled ones would not be.
        """
        if not self.stepper.uses_graphs or is_sharded(self.stepper.state.trained):
            return False
        if self.decision.is_made:
            return self.decision.from_step == self.stepper.state.step
        return self.logger.clock.is_warm

    def compile_if_it_pays(self) -> None:
        """Compiles the rest of the run if that saves time."""
        stepper, logger = self.stepper, self.logger
        world, step = stepper.world, stepper.state.step
        left = logger.seconds_left(step)
        # Processes differ in the time that they measure.
        saved = broadcast_from_main(
            world, lambda: seconds_saved(stepper.state.model, left)
        )
        if not self.decision.is_made:
            decision = CompileDecision(True, step if saved > 0 else None)
            # Before the next step: a resumed run computes each step the same way.
            settings = decision.settings()
            try:
                broadcast_from_main(world, lambda: self.run_folder.record(settings))
            except UserError as error:  # a full disk: decided after the next epoch
                logger.failures.failed(FAILED, f"{error} Training continues.")
                return
            logger.failures.recovered(FAILED)
            self.decision = decision
        if self.decision.from_step == step:
            words = f"Compiling, to save about {duration(saved)} of {duration(left)}"
            with stage(logger.console, words):
                stepper.compile()
                phases = stepper.recipe.phases(step / logger.num_steps)
                rehearse(stepper, phases, KernelCompiler())
                stepper.set_phase(stepper.phase)
            logger.clock.restart_warmup()
