"""Pages that follow from the code: commands, recipes, models, API."""

import inspect
import io
import os
import re
from contextlib import redirect_stdout
from unittest import mock

import t2t
from t2t.cli import main
from t2t.commands import COMMANDS
from t2t.commands.tables import model_rows
from t2t.models.zoo import ZOO
from t2t.recipes import MODULES, all_recipes

WIDE = "---\nhide:\n  - toc\n---\n"
"""The start of a page whose table needs the room of the list of headings."""


def pages() -> dict[str, str]:
    """The generated pages by their name."""
    return {
        "commands.md": commands_page(),
        "recipes.md": recipes_page(),
        "models.md": models_page(),
        "api.md": api_page(),
    }


def commands_page() -> str:
    """Every command with its options, as its help has them."""
    parts = [
        "# Commands",
        "`t2t COMMAND --help` prints the same. A value follows its option after a "
        "space or `=`.",
    ]
    for name in COMMANDS:
        about, tables = help_of(name)
        purpose, _, examples = about.partition("\nExamples:\n")
        usage, _, purpose = purpose.partition("\n\n")
        parts += [f"## t2t {name} {{ #{name} }}", as_markdown(purpose.strip())]
        parts += [f"```text\n{usage.removeprefix('usage: ')}\n```"]
        if examples:
            parts += [f"```text\n{inspect.cleandoc(examples)}\n```"]
        parts += [option_table(name, options_in(tables))]
    return "\n\n".join(parts) + "\n"


def help_of(command: str) -> tuple[str, str]:
    """The help of a command: the text, and the tables of options below it."""
    printed = io.StringIO()
    with mock.patch.dict(os.environ, COLUMNS="1000"), redirect_stdout(printed):
        main([command, "--help"])
    lines = [line.rstrip() for line in printed.getvalue().splitlines()]
    # Each table begins with its title and a rule.
    start = next(index for index, line in enumerate(lines) if set(line) == {*" -"}) - 1
    return "\n".join(lines[:start]), "\n".join(lines[start:])


def options_in(tables: str) -> list[tuple[str, str]]:
    """The options of a help's tables: how each is written, and its explanation."""
    options: list[tuple[str, str]] = []
    for line in re.findall(r"^  (.*)$", tables, flags=re.MULTILINE):
        written, _, text = line.partition("  ")
        if not written:  # the explanation of an option that fills its line
            written, before = options.pop()
            text = f"{before} {text.strip()}"
        options.append((written, text.strip()))
    return [option for option in options if not option[0].startswith("-h,")]


def option_table(command: str, options: list[tuple[str, str]]) -> str:
    """A table of a command's options, to each of which a link can lead."""
    rows = ["| option | |", "|---|---|"]
    for written, text in options:
        name = re.sub("[^a-z]+", "-", written.split()[0].lower()).strip("-")
        code = f"`{written}`".replace("|", "\\|")
        cell = as_markdown(text).replace("|", "\\|")
        rows.append(f'| <span id="{command}-{name}"></span>{code} | {cell} |')
    return "\n".join(rows)


def recipes_page() -> str:
    """Every recipe, as its docstring describes it."""
    parts = [
        "# Recipes",
        "A recipe is a named run: `t2t train NAME`. `t2t recipes` lists them, "
        "`t2t train NAME --dry-run` prints every field, steps, time and memory, and "
        "the [guide](guide.md#change-a-recipe) explains how to change one.",
    ]
    recipes = all_recipes()
    for module in MODULES:
        parts.append(f"## {module}")
        for name, make in recipes.items():
            if name.startswith(f"{module}."):
                first, _, rest = (inspect.getdoc(make) or "").partition("\n")
                parts += [f"### {name} {{ #{name} }}", as_markdown(first)]
                parts += [recipe_text(rest)] if rest.strip() else []
    return "\n\n".join(parts) + "\n"


def recipe_text(text: str) -> str:
    """What follows the first sentence of a recipe: commands, hardware, result."""
    blocks = []
    for block in text.strip().split("\n\n"):
        is_command = block.lstrip().startswith(("t2t ", "torchrun "))
        lines = inspect.cleandoc(block)
        blocks.append(f"```text\n{lines}\n```" if is_command else as_markdown(lines))
    link = r"[records/\1](records/\1/README.md)"
    return re.sub(r"\brecords/([\w-]+)", link, "\n\n".join(blocks))


def models_page() -> str:
    """Every model, with its numbers beside the paper's."""
    rows = [
        "| model | parameters, M | MACs, G | image, px | paper, M | paper, G "
        "| paper, top-1 | what it is |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for row in model_rows(ZOO):
        paper = row["paper"] or {}
        numbers = (paper.get(key) for key in ("params", "macs", "top1"))
        of_paper = " | ".join("" if each is None else f"{each:g}" for each in numbers)
        height, width = row["image_size"]
        size = f"{height}" if height == width else f"{height}×{width}"
        rows.append(
            f"| `{row['name']}` | {row['parameters'] / 1e6:.1f} | {row['gmacs']:.3f} | "
            f"{size} | {of_paper} | {row['about']} |"
        )
    return "\n".join(
        [
            WIDE,
            "# Models",
            "",
            "`t2t models` prints this table, `t2t show NAME` the modules and costs of "
            'one, and `t2t.create_model("NAME")` builds it. Any other model of timm '
            "works by its name. [Costs](counting.md) says how they are counted.",
            "",
            *rows,
            "",
        ]
    )


def api_page() -> str:
    """The public names, from their docstrings."""
    parts = ["# Python API", "These names are in `t2t` and stay."]
    for heading, names in groups().items():
        parts.append(f"## {heading}")
        for name in names:
            module = t2t.LAZY.get(name) or getattr(t2t, name).__module__
            parts.append(f"::: {module}.{name}")
    return "\n\n".join(parts) + "\n"


def groups() -> dict[str, list[str]]:
    """The public names by what they are for."""
    register = [name for name in t2t.__all__ if name.startswith("register_")]
    classes = [name for name in t2t.__all__ if name[0].isupper()]
    functions = [name for name in t2t.__all__ if name not in {*register, *classes}]
    return {"Functions": functions, "Your own parts": register, "Classes": classes}


def as_markdown(text: str) -> str:
    """Text of a help or docstring, whose angle brackets and stars are literal."""
    return re.sub(r"(?<!`)([<*_])(?!`)", r"\\\1", text) if "`" not in text else text
