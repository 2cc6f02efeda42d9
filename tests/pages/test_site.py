"""The site: built strictly, complete, without outside requests."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import pytest
import yaml

import t2t
from t2t.cli import COMMANDS
from t2t.models.zoo import ZOO
from t2t.recipes import all_recipes

ROOT = Path(__file__).parents[2]
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src"}
"""What a browser loads with a page, and where it says so."""


class Page(HTMLParser):
    """What a page loads, where it leads to, and its anchors."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag in LOADED and LOADED[tag] in values and values.get("rel") != "canonical":
            self.loaded.append(values[LOADED[tag]])
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        self.anchors |= {values[name] for name in ("id", "name") if name in values}


@pytest.fixture(scope="module")
def pages() -> Iterator[ModuleType]:
    """The script that writes the pages."""
    spec = importlib.util.spec_from_file_location(
        "site_pages", ROOT / "website/pages.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = before


@pytest.fixture(scope="module")
def written(pages: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages in Markdown, beside the site's configuration."""
    folder = tmp_path_factory.mktemp("site")
    pages.write_pages(folder / "build/pages")
    config = (ROOT / "mkdocs.yml").read_text()
    (folder / "mkdocs.yml").write_text(config)
    return folder


@pytest.fixture(scope="module")
def site(written: Path) -> dict[str, Page]:
    """The pages of the built site by their path."""
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "--clean"],
        cwd=written,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    folder = written / "build/site"
    return {
        path.relative_to(folder).as_posix(): Page(path.read_text())
        for path in folder.rglob("*.html")
    }


def test_links_images_and_anchors_lead_somewhere(
    site: dict[str, Page], written: Path
) -> None:
    folder, wrong = written / "build/site", []
    for name, page in site.items():
        if name == "404.html":
            continue
        for target in [*page.loaded, *page.links]:
            if urlsplit(target).scheme:
                continue
            parts = urlsplit(urljoin(f"/{name}", unquote(target)))
            path = parts.path.lstrip("/")
            path = f"{path}index.html" if path.endswith("/") or not path else path
            if not (folder / path).is_file():
                wrong.append(f"{name}: {target}")
            elif parts.fragment and path in site:
                anchors = {*site[path].anchors, "__skip", "__toc"}
                if parts.fragment not in anchors:
                    wrong.append(f"{name}: {target}")
    assert wrong == []
    assert sum(len(page.links) for page in site.values()) > 1000


def test_a_page_loads_nothing_from_outside(
    site: dict[str, Page], written: Path
) -> None:
    loaded = {target for page in site.values() for target in page.loaded}
    assert [target for target in loaded if urlsplit(target).netloc] == []
    styles = [path.read_text() for path in (written / "build/site").rglob("*.css")]
    assert styles
    assert not [text for text in styles if "url(http" in text or "@import" in text]


def test_every_page_of_docs_is_in_the_navigation() -> None:
    config = (ROOT / "mkdocs.yml").read_text()
    nav = json.dumps(yaml.safe_load("nav:" + config.split("\nnav:")[1]))
    docs = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert {name for name in docs if f'"{name}"' not in nav} == set()


def test_every_command_and_option_has_an_anchor(site: dict[str, Page]) -> None:
    anchors = site["commands/index.html"].anchors
    assert {*COMMANDS} <= anchors
    assert {"train-from", "train-set", "predict-picture", "models-filter"} <= anchors


def test_the_commands_page_has_the_options_of_the_help(
    written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (written / "build/pages/commands.md").read_text()
    section = text.split("## t2t train ")[1].split("\n## ")[0]
    assert "`--freeze` | Train only the head; keep the other weights" in section
    assert "`--distill {soft,hard}` |" in section
    # The explanation of an option that fills its line in the help is on the next.
    assert "| Learn the teacher's probabilities (soft) or" in section
    assert section.count("| <span id=") > 20


def test_every_public_name_is_in_the_api(site: dict[str, Page]) -> None:
    anchors = {anchor.rpartition(".")[2] for anchor in site["api/index.html"].anchors}
    assert {*t2t.__all__} - anchors == set()


def test_every_recipe_and_model_is_listed(site: dict[str, Page], written: Path) -> None:
    assert {*all_recipes()} - site["recipes/index.html"].anchors == set()
    models = (written / "build/pages/models.md").read_text()
    assert [name for name in ZOO if f"| `{name}` |" not in models] == []


def test_links_of_the_readme_lead_to_pages(pages: ModuleType) -> None:
    text = "[a](docs/guide.md#data), [b](records/digits), [c](https://x.y/docs/z.md)"
    assert pages.for_the_site(text, "README.md", "index.md") == (
        "[a](guide.md#data), [b](records/digits/README.md), [c](https://x.y/docs/z.md)"
    )
    text = "[a](../README.md#speed) and\n- [b](../t2t/tasks/base.py)\n"
    assert pages.for_the_site(text, "docs/guide.md", "guide.md") == (
        "[a](index.md#speed) and\n\n- [b](source/t2t/tasks/base.py.md)\n"
    )
    code = "```\ntext\n- [a](docs/guide.md)\n```\n"
    assert pages.for_the_site(code, "README.md", "index.md") == code


def test_a_folder_of_other_files_is_not_replaced(
    pages: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "mine.md").write_text("mine")
    with pytest.raises(SystemExit, match="holds no earlier pages"):
        pages.main([str(tmp_path)])
    assert (tmp_path / "mine.md").read_text() == "mine"


def test_pages_are_as_wide_as_a_phone(
    site: dict[str, Page], written: Path, browser: Any
) -> None:
    """No page is wider than the screen: tables and code scroll by themselves."""
    outside = []
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.on(
        "request",
        lambda request: (
            outside.append(request.url) if request.url.startswith("http") else None
        ),
    )
    for name in ("index", "guide/index", "commands/index", "models/index"):
        page.goto((written / f"build/site/{name}.html").as_uri())
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= 390, name
    page.close()
    assert outside == []
