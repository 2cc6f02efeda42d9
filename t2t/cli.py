"""The command line: finds the verb, calls it, and tells mistakes in one sentence."""

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
from t2t.commands.options import check_alone
from t2t.commands.parse import PARSING, parse
from t2t.errors import LocalError, ReportedError, UserError, lack, suggest
from t2t.torchrun import is_main

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
NO_WAY_IN = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.EIO)
HELP = ("-h", "--help")
LEADER_SECONDS = 10.0
LEAST_COLUMNS = 40
PURPOSE = """Train vision transformers from scratch on the images you have.

t2t VERB --help explains a verb by examples; t2t --version tells the version."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    set_up_output()
    try:
        with warnings.catch_warnings():
            # No font has all characters; one that it lacks is drawn as a box.
            warnings.filterwarnings("ignore", "Glyph .* missing from font")
            run(words)
        # A reader that has gone shows only when the last words are sent.
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
            told = lack(name, error)
            if told is None and error.errno in NO_WAY_IN:
                told = LocalError(
                    f"{name} cannot be opened ({error.strerror}): put that right, or "
                    "name another."
                )
            if told is not None:
                print(f"t2t: {told}", file=sys.stderr)
                return 2
        if not (isinstance(error, BrokenPipeError) or error.errno in NO_ROOM):
            raise
        # What is still to be sent could not be either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 141
        print(f"t2t: {error.strerror}; make room.", file=sys.stderr)
        return 1
    except SystemExit as leaving:
        code = leaving.code
        return code if isinstance(code, int) else int(code is not None)
    return 0


def wait_for_main() -> None:
    """Lets torchrun's first process tell what all are about to.

    torchrun ends the others as soon as one has ended, be it before it could speak.
    """
    if not is_main():
        time.sleep(LEADER_SECONDS)


def set_up_output() -> None:
    """Lets all be printed: what an encoding lacks is escaped, as Python's errors are.

    Names of files need not be text, nor can every terminal show what we draw. What was
    closed (`<&-`) leads nowhere: warnings must not find their way among the results.
    """
    sys.stdin = sys.stdin or StringIO()
    sys.stdout = sys.stdout or StringIO()
    sys.stderr = sys.stderr or StringIO()
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def widen_terminal() -> None:
    """Lets a narrow terminal break the lines of the help itself.

    Where no column is left beside a name, tyro would go on breaking words for ever.
    """
    if shutil.get_terminal_size().columns < LEAST_COLUMNS:
        os.environ["COLUMNS"] = str(LEAST_COLUMNS)


def run(words: list[str]) -> None:
    """Calls the verb that the first word names with what the others say."""
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
            check_alone(f"t2t {words[0]}")
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
    """Prints the verbs, each with its first sentence."""

    def without_options() -> None:
        """Stands for a verb: its options need not be read to list it."""

    commands = {
        name: Annotated[
            Any,
            subcommand(
                name=name,
                description=(inspect.getdoc(command) or "").partition("\n")[0],
                constructor=without_options,
            ),
        ]
        for name, command in COMMANDS.items()
    }
    widen_terminal()
    choice: Any = Union[tuple(commands.values())]  # noqa: UP007
    tyro.cli(choice, prog="t2t", description=PURPOSE, args=["--help"])
