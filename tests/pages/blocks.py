"""Code blocks of a page, and how to run them in a folder."""

import glob
import io
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from t2t import user_code
from t2t.cli import main

RUN = ("console", "python")
"""The languages of blocks that are run."""

PROGRAMS = ("cat", "find", "head", "ls", "python", "tail", "wc")
"""Programs of the system that a block may use beside t2t."""

FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
MARK = re.compile(r"<!-- not run: ((?:(?!-->).)+) -->\s*\Z", re.DOTALL)
NUMBER = re.compile(r"(?<![\w-])\d[\d,.]*")
"""A number, but not that of a name such as top-1."""
BAR = re.compile(r"[█▏▎▍▌▋▊▉─]+")
PLURAL = re.compile(r"(?<=\w{3})s\b")
"""Where a page shows 12 epochs, a run has 1 epoch here."""
LATER_EPOCH = re.compile(r"epoch +(?!1/)\d+/")


@dataclass(frozen=True)
class Block:
    """A code block, the line of its first line of code, and why it is not run."""

    language: str
    line: int
    code: str
    reason: str | None


@dataclass(frozen=True)
class Command:
    """A command of a console block, and the output that the page shows below it."""

    line: int
    words: str
    shown: list[str]


class BlockError(AssertionError):
    """What a line of a page says is not what happens."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


def find_blocks(page: str) -> list[Block]:
    """The blocks of a page that are to be run, or say why they are not."""
    blocks = []
    for found in FENCE.finditer(page):
        if found["language"] not in RUN:
            continue
        before = page[: found.start()]
        mark = MARK.search(before)
        is_marked = mark is not None and before[mark.end(1) :].count("\n") <= 2
        blocks.append(
            Block(
                found["language"],
                page.count("\n", 0, found.start("body")) + 1,
                textwrap.dedent(found["body"]),
                mark[1] if mark is not None and is_marked else None,
            )
        )
    return blocks


def find_commands(block: Block) -> list[Command]:
    """The commands of a console block: lines after `$`, with what follows them."""
    commands: list[Command] = []
    is_continued = False
    for number, text in enumerate(block.code.splitlines(), block.line):
        if text.startswith("$ "):
            commands.append(Command(number, text[2:], []))
        elif is_continued:
            last = commands.pop()
            commands.append(Command(last.line, f"{last.words[:-1]} {text.strip()}", []))
        elif commands:
            commands[-1].shown.append(text)
        else:
            raise BlockError(number, "output is shown before any command")
        is_continued = not commands[-1].shown and commands[-1].words.endswith("\\")
    return commands


def run_block(block: Block, module: ModuleType) -> None:
    """Runs a block in the current folder; Python's names are those of the module."""
    if block.language == "python":
        with undone_later(module):
            lines = "\n" * (block.line - 1) + block.code
            exec(compile(lines, str(module.__file__), "exec"), vars(module))
        return
    for command in find_commands(block):
        code, printed = run_line(command)
        if code != 0:
            message = f"`{command.words}` exits with {code} and prints\n{printed}"
            raise BlockError(command.line, message)
        if missing := first_missing(command.shown, printed):
            raise BlockError(
                command.line,
                f"`{command.words}` does not print what the page shows, first\n"
                f"  {missing}\nIt prints\n{printed}",
            )


@contextmanager
def undone_later(module: ModuleType) -> Iterator[None]:
    """Takes note of what is registered meanwhile, for `forget`."""
    user_code.RUNNING.append(module.code)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        user_code.RUNNING.pop()


def page_module(path: Path) -> ModuleType:
    """The module in which the Python blocks of a page run."""
    module = sys.modules["page"] = ModuleType("page")
    module.__file__ = str(path)
    module.code = user_code.CodeFile(path, b"", module, [])  # type: ignore[attr-defined]
    return module


def forget(module: ModuleType) -> None:
    """Takes back what the blocks of a page have registered."""
    user_code.unload(module.code)  # type: ignore[attr-defined]


def run_line(command: Command) -> tuple[int, str]:
    """Runs commands joined by pipes; returns the exit code and what is printed."""
    stages, target = split_line(command)
    given, printed, code = b"", io.BytesIO(), 0
    for number, words in enumerate(stages, 1):
        is_last = number == len(stages)
        output = printed if is_last and target is None else io.BytesIO()
        code = run_words(words, given, output, printed) or code
        given = output.getvalue()
    if target is not None:
        Path(target).write_bytes(given)
    return code, printed.getvalue().decode()


def split_line(command: Command) -> tuple[list[list[str]], str | None]:
    """The words of each program between pipes, and the file after `>`."""
    lexer = shlex.shlex(command.words, posix=True, punctuation_chars="|<>&;")
    lexer.whitespace_split, lexer.commenters = True, "#"
    stages: list[list[str]] = [[]]
    words, target = list(lexer), None
    if words[-2:-1] == [">"]:
        *words, _, target = words
    for word in words:
        if word == "|":
            stages.append([])
        elif set(word) <= set("|<>&;"):
            raise BlockError(command.line, f"{word} cannot be run; mark the block")
        else:
            stages[-1].append(word)
    for words in stages:
        if words[:1] != ["t2t"] and words[0] not in PROGRAMS:
            raise BlockError(command.line, f"{words[0]} cannot be run; mark the block")
    return stages, target


def run_words(
    words: list[str], given: bytes, output: io.BytesIO, errors: io.BytesIO
) -> int:
    """Runs one command: of t2t in this process, another in its own."""
    if words[:3] == ["python", "-m", "t2t"]:
        words = words[2:]
    if words[0] == "t2t":
        expanded = [path for word in words[1:] for path in glob.glob(word) or [word]]
        return run_t2t(expanded, given, output, errors)
    if words[0] == "python":
        words = [sys.executable, *words[1:]]
    done = subprocess.run(words, input=given, capture_output=True)
    output.write(done.stdout)
    errors.write(done.stderr)
    return done.returncode


def run_t2t(
    words: list[str], given: bytes, output: io.BytesIO, errors: io.BytesIO
) -> int:
    """Runs a command of t2t as `t2t.__main__` does."""
    before = sys.stdin
    stdin = io.TextIOWrapper(io.BytesIO(given), encoding="utf-8")
    stdout, stderr = (
        io.TextIOWrapper(each, encoding="utf-8", write_through=True)
        for each in (output, errors)
    )
    try:
        sys.stdin = stdin
        with redirect_stdout(stdout), redirect_stderr(stderr):
            return main(words)
    finally:
        sys.stdin = before
        for stream in (stdout, stderr):
            stream.flush()
            stream.detach()


def first_missing(shown: list[str], printed: str) -> str | None:
    """The first line that a page shows and a command does not print, if any.

    `...` or `…` alone stands for any lines, and within a line for anything; numbers
    and bars stand for others. Lines must come in the order of the page. Runs last one
    epoch here, so later epochs that a page shows are left out.
    """
    lines = iter(printed.splitlines())
    for text in shown:
        if text.strip() in ("", "...", "…") or LATER_EPOCH.match(text):
            continue
        pattern = re.compile(as_pattern(text))
        if not any(pattern.fullmatch(plain(line)) for line in lines):
            return text
    return None


def plain(line: str) -> str:
    """A line with its numbers as 0, without plurals, bars and repeated blanks."""
    numberless = NUMBER.sub("0", line)
    return " ".join(PLURAL.sub("", BAR.sub("", numberless)).split())


def as_pattern(shown: str) -> str:
    """A pattern for lines like the shown one."""
    parts = re.split(r"\.\.\.|…", plain(shown))
    return r"\s*.*\s*".join(re.escape(part.strip()) for part in parts)
