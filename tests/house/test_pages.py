"""The README and the docs match the code: links, commands, options, files."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from t2t.cli import COMMANDS, main
from t2t.models.zoo import ZOO
from t2t.recipes import find_recipe

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "records/**/*.md")
    for path in ROOT.glob(pattern)
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
    local = [target for target in targets if "://" not in target]
    missing = [target for target in local if not (page.parent / target).exists()]
    assert missing == []


def test_anchors_lead_somewhere() -> None:
    wrong = []
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
            text = (page.parent / target if target else page).read_text()
            titles = re.findall(r"^#+ (.*)", text, flags=re.MULTILINE)
            anchors = {
                re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-")
                for each in titles
            }
            if anchor not in anchors:
                wrong.append(f"{page.relative_to(ROOT)}: {target}#{anchor}")
    assert wrong == []


@pytest.mark.parametrize("command", [*COMMANDS])
def test_options_exist(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main([command, "--help"]) == 0
    known = set(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out))
    # The changelog names options that are gone.
    current = [page for page in PAGES if page.name != "CHANGELOG.md"]
    pages = [page.read_text().replace("\\\n", " ") for page in current]
    shown = [
        option
        for command in re.findall(rf"\bt2t {command}\b([^\n`#;]*)", "\n".join(pages))
        for option in re.findall(r"--[a-z][a-z-]*", command)
    ]
    assert set(shown) - known == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_recipes_exist(page: Path) -> None:
    text = page.read_text()
    commands = re.findall(r"(?:^\$ |^|`)t2t ([a-z]+)\b", text, flags=re.MULTILINE)
    assert [command for command in commands if command not in COMMANDS] == []
    for recipe in re.findall(r"t2t train ([a-z0-9_]+\.[a-z0-9_]+)\b(?!:)", text):
        find_recipe(recipe)


def test_the_architecture_shows_the_folders() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    tree = re.split(r"```\n", text.split("## The folders")[1])[1]
    shown = set(re.findall(r"\b[\w/]+(?:/|\.py)(?=\s|$|;)", tree))
    parts = {
        f"{path.name}/" if path.is_dir() else path.name
        for path in (ROOT / "t2t").iterdir()
        if not path.name.startswith("__") and path.name != "py.typed"
    }
    assert parts - shown == set()
    folders = [ROOT, *(path for path in (ROOT / "t2t").rglob("*") if path.is_dir())]
    folders += [ROOT / "t2t", ROOT / "tests"]
    missing = [
        name for name in shown if not any((each / name).exists() for each in folders)
    ]
    assert missing == []


def test_the_architecture_names_files_that_exist() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    named = set(re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", text))
    missing = [
        name
        for name in named
        if not (ROOT / name).exists() and not (ROOT / "t2t" / name).exists()
    ]
    assert named
    assert missing == []


def test_the_readme_counts_the_models() -> None:
    text = (ROOT / "README.md").read_text()
    (count,) = re.findall(r"lists all (\d+)", text)
    assert int(count) == len(ZOO)


def test_the_readme_shows_what_the_command_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["models", "t2t_vit_t"]) == 0
    assert capsys.readouterr().out.rstrip() in (ROOT / "README.md").read_text()


def test_features_and_attention_come_as_the_page_says() -> None:
    text = (ROOT / "docs/using.md").read_text()
    section = text.split("## Features and attention")[1].split("\n## ")[0]
    seen: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL):
        exec(block, seen)
    assert seen["tokens"].shape == (2, 256, 256)
    assert seen["pooled"].shape == (2, 256)
    assert [each.shape for each in seen["maps"]] == 2 * [(2, 256, 16, 16)]
    assert [each.shape for each in seen["attention"]] == 7 * [(2, 4, 256, 256)]


def test_the_package_has_types_and_a_command() -> None:
    assert (ROOT / "t2t" / "py.typed").is_file()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"t2t": "t2t.__main__:main"}


def test_no_page_installs_from_pypi() -> None:
    pages = [*(ROOT / "t2t").rglob("*.py"), *ROOT.glob("docs/*.md"), ROOT / "README.md"]
    assert not [page for page in pages if "t2t-vit[" in page.read_text()]
