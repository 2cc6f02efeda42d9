"""The command line: finds and runs a command; a mistake is one sentence."""

import errno
import inspect
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from io import StringIO, TextIOWrapper
from typing import Annotated, Any, Union

import tyro
from tyro.conf import subcommand

from t2t import __version__
from t2t.commands import COMMANDS, DISTRIBUTED
from t2t.commands.options import check_single_process
from t2t.commands.parse import PARSING, parse
from t2t.errors import (
    DISK_FULL,
    LocalError,
    ReportedError,
    UserError,
    machine_error,
    suggest,
)
from t2t.torchrun import is_main
from t2t.user_code import explain

UNREADABLE = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.EIO)
HELP = ("-h", "--help")
MAIN_PROCESS_SECONDS = 10.0
MIN_COLUMNS = 40
PURPOSE = """Train vision transformers from scratch on the images you have.

t2t COMMAND --help explains a command; t2t --version prints the version."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line and returns its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    set_up_output()
    try:
        with warnings.catch_warnings():
            # A character that the font lacks is drawn as a box.
            warnings.filterwarnings("ignore", "Glyph .* missing from font")
            run_explained(words)
        # A closed pipe shows only when the last output is flushed.
        sys.stdout.flush()
    except UserError as error:
        if not isinstance(error, ReportedError):
            if not isinstance(error, LocalError):
                wait_for_main()
            print(f"t2t: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        if error.filename is not None:
            name = os.fsdecode(error.filename)
            message = machine_error(name, error)
            if message is None and error.errno in UNREADABLE:
                message = LocalError(
                    f"{name} cannot be opened ({error.strerror}): fix that, or name "
                    "another."
                )
            if message is not None:
                print(f"t2t: {message}", file=sys.stderr)
                return 2
        if not (isinstance(error, BrokenPipeError) or error.errno in DISK_FULL):
            raise
        # Nothing more can be written: buffered output is discarded.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 141
        print(f"t2t: {error.strerror}; free some space.", file=sys.stderr)
        return 1
    except SystemExit as leaving:
        code = leaving.code
        return code if isinstance(code, int) else int(code is not None)
    return 0


def wait_for_main() -> None:
    """Lets only torchrun's main process print an error that all processes raise.

    torchrun stops the others as soon as one process exits.
    """
    if not is_main():
        time.sleep(MAIN_PROCESS_SECONDS)


def set_up_output() -> None:
    """Escapes characters that the encoding of the output, or of a list, lacks.

    Streams that were closed (`<&-`) discard their output: warnings must not end up
    among the results.
    """
    sys.stdin = sys.stdin or StringIO()
    sys.stdout = sys.stdout or StringIO()
    sys.stderr = sys.stderr or StringIO()
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if isinstance(sys.stdin, TextIOWrapper):  # a list of file names, of any bytes
        sys.stdin.reconfigure(errors="surrogateescape")


def widen_terminal() -> None:
    """Gives tyro enough columns: in a narrow terminal its help would never finish."""
    if shutil.get_terminal_size().columns < MIN_COLUMNS:
        os.environ["COLUMNS"] = str(MIN_COLUMNS)


def run_explained(words: list[str]) -> None:
    """Runs a command; an error in a user's file is one sentence."""
    try:
        run(words)
    except (UserError, BrokenPipeError):
        raise
    except Exception as error:
        if where_and_what := explain(error):
            raise UserError(where_and_what) from error
        raise


def run(words: list[str]) -> None:
    """Runs the command named by the first argument."""
    if words[:1] == ["--version"]:
        print(f"t2t {__version__}")
    elif not words or words[0] in (*HELP, "help"):
        print_commands()
    elif words[0] in COMMANDS:
        command = COMMANDS[words[0]]
        if {*words} & {*HELP}:
            print_help(words[0], command)
            return
        values = parse(words[0], command, words[1:])
        if words[0] not in DISTRIBUTED:
            check_single_process(f"t2t {words[0]}")
        command(**values)
    else:
        hint = suggest(words[0], COMMANDS)
        raise UserError(f"There is no command {words[0]!r}.{hint}")


def print_help(name: str, command: Callable[..., None]) -> None:
    """Prints the help of one command."""
    widen_terminal()
    tyro.cli(
        command,
        prog=f"t2t {name}",
        description=inspect.getdoc(command),
        args=["--help"],
        config=PARSING,
    )


def print_commands() -> None:
    """Prints the commands, each with the first sentence of its help."""

    def no_options() -> None:
        """Stands for a command, whose options are not listed here."""

    commands = {
        name: Annotated[
            Any,
            subcommand(
                name=name,
                description=(inspect.getdoc(command) or "").partition("\n")[0],
                constructor=no_options,
            ),
        ]
        for name, command in COMMANDS.items()
    }
    widen_terminal()
    choice: Any = Union[tuple(commands.values())]  # noqa: UP007
    tyro.cli(choice, prog="t2t", description=PURPOSE, args=["--help"])
