"""The messages of a run: printed, and written to log.txt."""

from rich.text import Text

from t2t.log_level import prints_info, prints_warnings
from t2t.training.distributed import World
from t2t.training.logging.console import RunConsole
from t2t.training.logging.failure_counter import FailureCounter
from t2t.training.run_folder import RunFolder

LOG_FAILED = "The log could not be written"


class Messages:
    """Prints messages and logs them, in the main process."""

    def __init__(self, run_folder: RunFolder, world: World, quiet: bool) -> None:
        self.run_folder, self.world = run_folder, world
        silent = quiet or not world.is_main
        self.console = RunConsole(quiet=silent or not prints_info(), highlight=False)
        self.warnings = self.console
        """Where warnings are printed."""
        if not prints_info():
            silent = silent or not prints_warnings()
            self.warnings = RunConsole(stderr=True, quiet=silent, highlight=False)
        # If the log cannot be written, the warning is only printed.
        self.failures = FailureCounter(lambda line: self.show(line, style="yellow"))

    def warn(self, sentence: str) -> None:
        """Prints and logs a warning."""
        self.show(sentence, style="yellow")
        self.note(sentence)

    def info(self, *parts: str | tuple[str, str]) -> None:
        """Prints and logs a line; a pair is a text and its style."""
        text = Text.assemble(*parts)
        self.console.show(text)
        self.note(text.plain)

    def show(self, sentence: str, style: str) -> None:
        """Prints a sentence without logging it."""
        self.warnings.show(Text(sentence, style=style))

    def note(self, line: str) -> None:
        """Logs a line without printing it; a full disk does not stop a run."""
        folder = self.run_folder
        if not self.world.is_main or not folder.path.is_dir() or folder.is_lost():
            return
        try:
            with folder.log.open("ab") as file:
                file.write(f"{line}\n".encode(errors="backslashreplace"))
            self.failures.recovered(LOG_FAILED)
        except OSError as error:
            self.failures.failed(LOG_FAILED, write_failure(LOG_FAILED, error, folder))


def write_failure(failed: str, error: OSError, folder: RunFolder) -> str:
    """The warning about a file that cannot be written."""
    return (
        f"{failed} ({error.strerror}); training continues. Check the disk of "
        f"{folder.path}."
    )
