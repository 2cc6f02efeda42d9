"""Writes the pages of the site, from the repository's pages as GitHub shows them.

    python website/pages.py build/pages

README.md becomes the start page, pages outside docs/ come along, and relative links
lead to where things are on the site. Pages that follow from the code (commands,
recipes, models, API) are written by `reference.py`.
"""

import json
import posixpath
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import notebook
import reference

ROOT = Path(__file__).parents[1]
MOVED = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "t2t/builtin/MODEL_CARD.md": "model_card.md",
}
"""Where pages outside docs/ are on the site."""

COPIED = ("docs", "records")
"""Folders that are on the site as a whole, the first without its name."""

LINK = re.compile(r"(!?\[[^\]]*\]\()([^)#\s]*)((?:#[^)\s]*)?\))")
FENCE = re.compile(r"^( *```.*?^ *```)$", re.MULTILINE | re.DOTALL)
LIST_AFTER_TEXT = re.compile(r"^(?!- |\s|$)(.+)\n(?=- )", re.MULTILINE)


def write_pages(folder: Path) -> None:
    """Writes all pages of the site and their files into an empty folder."""
    folder.mkdir(parents=True)
    for path in repository_files():
        target = folder / on_site(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.endswith(".md"):
            text = (ROOT / path).read_text()
            target.write_text(for_the_site(text, path, on_site(path)))
        elif path.endswith(".ipynb"):
            write_notebook(path, target)
        else:
            shutil.copyfile(ROOT / path, target)
    for name, text in {**listings(), **code_pages(), **reference.pages()}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    shutil.copyfile(Path(__file__).with_name("style.css"), folder / "style.css")


def write_notebook(path: str, target: Path) -> None:
    """Writes a notebook as a page, its pictures, and itself to be downloaded."""
    text, pictures = notebook.as_page(
        json.loads((ROOT / path).read_text()), target.stem
    )
    target.write_text(for_the_site(text, path, on_site(path)))
    for name, data in pictures.items():
        target.with_name(name).write_bytes(data)
    shutil.copyfile(ROOT / path, target.with_suffix(".ipynb"))


def repository_files() -> list[str]:
    """The files of the repository that are on the site."""
    found = [path for each in COPIED for path in (ROOT / each).rglob("*")]
    files = [path.relative_to(ROOT).as_posix() for path in found if path.is_file()]
    return [*MOVED, *sorted(files)]


def on_site(path: str) -> str:
    """Where a file or folder of the repository is on the site."""
    if path.startswith("t2t/") and path.endswith(".py"):
        return f"source/{path}.md"
    if path.endswith(".ipynb"):
        path = f"{path.removesuffix('.ipynb')}.md"
    if path.startswith("records/") and (ROOT / path).is_dir():
        return f"{path}/README.md"
    return MOVED.get(path, path.removeprefix("docs/"))


def listings() -> dict[str, str]:
    """Pages that list the files of folders which have no page."""
    folders = [path for path in (ROOT / "records").rglob("*") if path.is_dir()]
    return {
        f"{name}/README.md": listing(folder)
        for folder in folders
        if not (folder / "README.md").exists()
        for name in [folder.relative_to(ROOT).as_posix()]
    }


def listing(folder: Path) -> str:
    """A page that lists the files of a folder."""
    rows = [
        f"- [{path.name}]({path.name}{'/README.md' if path.is_dir() else ''})"
        for path in sorted(folder.iterdir())
    ]
    return "\n".join([f"# {folder.relative_to(ROOT).as_posix()}", "", *rows, ""])


def code_pages() -> dict[str, str]:
    """Pages that show the files of the package to which others link."""
    pages = [path for path in repository_files() if path.endswith(".md")]
    linked = {
        in_repository(path, target)
        for path in pages
        for _, target, _ in LINK.findall((ROOT / path).read_text())
    }
    return {
        on_site(path): f"# {path}\n\n````python\n{(ROOT / path).read_text()}````\n"
        for path in sorted(linked)
        if on_site(path).startswith("source/")
    }


def in_repository(page: str, target: str) -> str:
    """The path in the repository that a link of a page leads to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), target))


def for_the_site(text: str, path: str, place: str) -> str:
    """A page with links as they are on the site, and lists as GitHub reads them."""

    def relink(found: re.Match[str]) -> str:
        before, target, after = found.groups()
        if not target or ":" in target:
            return found[0]
        goal = on_site(in_repository(path, target))
        start = posixpath.dirname(place) or "."
        return f"{before}{posixpath.relpath(goal, start)}{after}"

    return "".join(
        part
        if part.lstrip().startswith("```")
        else LINK.sub(relink, LIST_AFTER_TEXT.sub(r"\1\n\n", part))
        for part in FENCE.split(text)
    )


def main(words: Iterable[str]) -> None:
    """Writes the pages into a folder, in place of what is there."""
    (folder,) = map(Path, words)
    if folder.exists():
        if not (folder / "index.md").is_file():
            sys.exit(f"{folder} holds no earlier pages: name another folder.")
        shutil.rmtree(folder)
    write_pages(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
