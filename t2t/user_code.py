"""Python files of users, which register parts of models and hold recipes.

A file runs if the user names it (`t2t train FILE.py:NAME`, `--code FILE.py`). A file in
a run folder runs if a model or recipe of that folder needs a name that is not
registered, and if this user has run the same text before. No other code is run.
"""

import ast
import hashlib
import logging
import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from t2t.cache import cache_folder
from t2t.errors import UserError, first_line
from t2t.torchrun import is_main

FOLDER = "code"
"""The folder in a run folder that keeps the files."""

logger = logging.getLogger("t2t")


@dataclass(frozen=True)
class CodeFile:
    """A file that was run: its path, its text at that time, and the module."""

    path: Path
    text: bytes
    module: ModuleType
    undo: list[Callable[[], object]]
    """Takes back what it has registered."""


LOADED: list[CodeFile] = []
"""The files that this process has run."""
OFFERED: list[Path] = []
"""Files in the run folders that this process has opened; they run when needed."""
RUNNING: list[CodeFile] = []
"""The files that are being run, the innermost last."""


def load_code(path: str | os.PathLike[str]) -> ModuleType:
    """Runs a user's file as a module; runs it again only if its code has changed."""
    file = Path(path).expanduser()
    if file.suffix != ".py":
        raise UserError(f"{path} is not a Python file: its name must end in .py.")
    try:
        text = file.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from error
    for loaded in LOADED:
        if loaded.path.name == file.name and is_same_code(loaded.text, text):
            return loaded.module
    for loaded in [each for each in LOADED if each.path == file.resolve()]:
        unload(loaded)
    name = "t2t_code_" + re.sub(r"\W", "_", file.stem)
    while name in sys.modules:
        name += "_"
    code = run_file(file, text, name)
    with suppress(OSError):  # then the file must be named again next time
        mark(text).parent.mkdir(parents=True, exist_ok=True)
        mark(text).touch()
    return code.module


def unload(code: CodeFile) -> None:
    """Unregisters what a file has registered."""
    for undo in code.undo:
        undo()
    del sys.modules[code.module.__name__]
    if code in LOADED:
        LOADED.remove(code)


def run_file(file: Path, text: bytes, name: str) -> CodeFile:
    """Runs the text of a file as a module; if it fails, nothing stays registered."""
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = str(file.resolve())
    code = CodeFile(file.resolve(), text, module, [])
    RUNNING.append(code)
    try:
        program = compile(text, module.__file__, "exec", dont_inherit=True)
        exec(program, vars(module))
    except (Exception, SystemExit) as error:
        unload(code)
        raise UserError(f"{file}{describe_error(error, module)}") from error
    finally:
        RUNNING.pop()
    LOADED.append(code)
    return code


def files_for(pickled: bytes) -> list[tuple[str, str, bytes]]:
    """Module names, paths and texts of the files that a pickle needs."""
    return [
        (code.module.__name__, str(code.path), code.text)
        for code in LOADED
        if code.module.__name__.encode() in pickled
    ]


def run_files(files: list[tuple[str, str, bytes]]) -> None:
    """Runs the files of another process, to unpickle what it sends."""
    for name, path, text in files:
        run_file(Path(path), text, name)


def describe_error(error: BaseException, module: ModuleType) -> str:
    """Where in a user's file an error was raised, and the error; follows its name."""
    file = module.__file__
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == file
    ]
    if isinstance(error, SyntaxError) and error.filename == file:
        lines, what = [error.lineno], error.msg
    elif isinstance(error, UserError):
        return f"{at_line(lines)}: {error}"
    else:
        what = f"{type(error).__name__}: {first_line(error)}"
    hint = ""
    if isinstance(error, ModuleNotFoundError):
        hint = " Files beside it are not found: put the code into it, or install it."
    return f"{at_line(lines)}: {what.rstrip('.')}.{hint}"


def explain(error: BaseException) -> str:
    """`FILE, line N: ERROR` for an error from a user's file; empty for others."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        for code in LOADED:
            if frame.filename == code.module.__file__:
                return f"{code.path}{describe_error(error, code.module)}"
    # Python and PyTorch raise these where something is called, not where it is defined.
    for code in LOADED:
        if isinstance(error, TypeError) and is_about(error, code.module):
            return f"{code.path}: {first_line(error).rstrip('.')}."
    for code in LOADED:
        if isinstance(error, AttributeError) and is_of(error.obj, code.module):
            return (
                f"{code.path}: {first_line(error).rstrip('.')}: define it, or let "
                "__init__ call super().__init__() first."
            )
    if LOADED and isinstance(error, NotImplementedError) and "forward" in str(error):
        return f"{first_line(error).rstrip('.')}."
    return ""


def is_about(error: TypeError, module: ModuleType) -> bool:
    """Whether an error is about the arguments of a function of a module."""
    called = re.match(r"([\w.]+)\(\) (takes|missing|got)", first_line(error))
    found: object = module if called else None
    for name in called[1].split(".") if called else ():
        found = getattr(found, name, None)
    return found is not None


def is_of(value: object, module: ModuleType) -> bool:
    """Whether a value is an instance of a class that a module defines."""
    return type(value).__module__ == module.__name__


def at_line(numbers: list[int | None]) -> str:
    """`, line N` for the innermost line, if known."""
    return f", line {numbers[-1]}" if numbers and numbers[-1] else ""


def is_same_code(one: bytes, other: bytes) -> bool:
    """Whether two texts differ in comments and layout at most."""
    if one == other:
        return True
    try:
        return ast.dump(ast.parse(one)) == ast.dump(ast.parse(other))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def mark(text: bytes) -> Path:
    """The file that exists if this user has run this text before."""
    return cache_folder() / "trusted_code" / hashlib.sha256(text).hexdigest()


def kept_files(run_folder: Path) -> list[Path]:
    """The files that a run folder keeps."""
    return sorted((run_folder / FOLDER).glob("*.py"))


def offer(run_folder: Path) -> None:
    """Makes the files of a run folder run once a name is needed that they may have."""
    OFFERED.extend(file for file in kept_files(run_folder) if file not in OFFERED)


def provide(what: str, is_there: Callable[[], bool]) -> str:
    """Runs offered files until a name is there.

    Returns a closing sentence on a file that may have it but was never run before.
    """
    untrusted = []
    if is_there():
        return ""
    for file in OFFERED:
        if is_there():
            return ""
        text = file.read_bytes() if file.is_file() else b""
        if any(is_same_code(text, loaded.text) for loaded in LOADED):
            continue
        if text and mark(text).exists():
            load_code(file)
            if is_main():
                logger.warning("%s was run for %s.", file, what)
        elif text:
            untrusted.append(file)
    if is_there() or not untrusted:
        return ""
    return (
        f" It may be in {untrusted[0]}, which you have not run before: to run it, add "
        f"--code {shlex.quote(str(untrusted[0]))}."
    )


def digests() -> dict[str, str]:
    """A digest of each file that was run, to compare processes."""
    return {
        code.path.name: hashlib.sha256(code.text).hexdigest()[:12] for code in LOADED
    }


def changed_file(run_folder: Path) -> str:
    """The name of a file that was run and that the run folder keeps otherwise."""
    kept = {file.name: file.read_bytes() for file in kept_files(run_folder)}
    for loaded in LOADED:
        name = loaded.path.name
        if name in kept and not is_same_code(kept[name], loaded.text):
            return name
    return ""
