"""One self-contained HTML page: text, tables and pictures, without outside requests."""

import base64
import html
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from PIL import Image

from t2t.atomic import write_atomically

NUM_SHORT = 16
"""Characters of a cell that does not wrap."""
CARD_QUALITY = 78
"""JPEG quality of the pictures of cards."""
STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --quiet: #777; }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 0 auto;
  padding: 1.5rem 1rem 4rem; }
h1, h2, h3, p { overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; } h2 { font-size: 1.25rem;
  margin: 2.5rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 .5rem; }
p { max-width: 46rem; } .quiet { color: var(--quiet); }
nav { display: flex; flex-wrap: wrap; gap: .25rem 1rem; }
.table { overflow-x: auto; margin: .75rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .75rem .25rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); }
.short { white-space: nowrap; }
.grid { display: grid; gap: 1rem .75rem;
  grid-template-columns: repeat(auto-fill, minmax(min(var(--width), 100%), 1fr)); }
figure { margin: 0; } figure img { display: block; width: 100%; border-radius: 4px;
  background: var(--soft); }
.pixelated img { image-rendering: pixelated; }
.drawings { display: flex; flex-wrap: wrap; gap: 1rem 2rem; margin: .75rem 0; }
.drawing { max-width: 100%; overflow-x: auto; } .drawing svg { display: block; }
figcaption { font-size: .85rem; margin-top: .25rem; overflow-wrap: anywhere; }
figcaption div:first-child { line-height: 1.3; }
figcaption .quiet { font-size: .78rem; line-height: 1.3; margin-top: .15rem; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 3px; }
.missing { aspect-ratio: 1; border: 1px dashed var(--line); border-radius: 4px;
  display: grid; place-items: center; font-size: .8rem; color: var(--quiet); }
.wrong { color: #c62828; } .right { color: #2e7d32; }
@media (prefers-color-scheme: dark) { :root { --quiet: #9a9a9a; }
  body { background: #16181b; color: #e6e6e6; } a { color: #8ab4f8; }
  .wrong { color: #ff8a80; } .right { color: #81c784; } }
"""


@dataclass(frozen=True)
class Text:
    """A piece of a caption: plain, or right, wrong or quiet."""

    text: str
    kind: Literal["", "right", "wrong", "quiet"] = ""

    def render(self) -> str:
        """As HTML."""
        escaped = html.escape(self.text)
        return f'<span class="{self.kind}">{escaped}</span>' if self.kind else escaped


@dataclass(frozen=True)
class Card:
    """One picture, or two side by side, above lines of text."""

    images: tuple[Image.Image | None, ...]
    """None for one that cannot be read."""
    lines: tuple[tuple[Text, ...], ...]
    title: str = ""
    """Shown while the mouse is over it."""


class HtmlPage:
    """A page that is built top to bottom and written as one file."""

    def __init__(self, title: str, introduction: str = "") -> None:
        self.title = title
        self._introduction = introduction
        self._sections: list[str] = []
        self._parts: list[str] = []

    def section(self, heading: str, text: str = "") -> None:
        """Starts a section; the page links to it from its top."""
        number = len(self._sections) + 1
        self._sections.append(heading)
        self._parts.append(f'<h2 id="section-{number}">{html.escape(heading)}</h2>')
        if text:
            self.paragraph(text)

    def heading(self, text: str) -> None:
        """A heading within a section."""
        self._parts.append(f"<h3>{html.escape(text)}</h3>")

    def paragraph(self, text: str, *, quiet: bool = False) -> None:
        """A paragraph of plain text."""
        kind = ' class="quiet"' if quiet else ""
        self._parts.append(f"<p{kind}>{html.escape(text)}</p>")

    def table(self, headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """A table of plain values."""
        head = "".join(table_cell(each, "th") for each in headings)
        body = "".join(
            "<tr>" + "".join(table_cell(str(cell)) for cell in row) + "</tr>"
            for row in rows
        )
        self._parts.append(
            f'<div class="table"><table><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>"
        )

    def pictures(
        self,
        images: Iterable[tuple[Image.Image, str]],
        *,
        width: int = 160,
        pixelated: bool = False,
    ) -> None:
        """A grid of pictures with captions, each at least `width` pixels wide."""
        figures = "".join(
            f'<figure><img loading="lazy" alt="{html.escape(caption)}" '
            f'src="{data_url(image)}"><figcaption>{html.escape(caption)}</figcaption>'
            "</figure>"
            for image, caption in images
        )
        kind = "grid pixelated" if pixelated else "grid"
        self._parts.append(
            f'<div class="{kind}" style="--width: {width}px">{figures}</div>'
        )

    def cards(self, cards: Iterable[Card], *, width: int = 110) -> None:
        """A grid of cards, each at least `width` pixels wide."""
        figures = "".join(card_html(card) for card in cards)
        self._parts.append(
            f'<div class="grid" style="--width: {width}px">{figures}</div>'
        )

    def drawings(self, drawings: Iterable[tuple[str, str]]) -> None:
        """SVG drawings with captions, side by side as the screen allows.

        They keep their size, and scroll sideways on a screen that is narrower.
        """
        figures = "".join(
            f'<figure class="drawing">{svg}<figcaption>{html.escape(caption)}'
            "</figcaption></figure>"
            for svg, caption in drawings
        )
        self._parts.append(f'<div class="drawings">{figures}</div>')

    def render(self) -> str:
        """The whole page."""
        title = html.escape(self.title)
        links = "".join(
            f'<a href="#section-{number}">{html.escape(heading)}</a>'
            for number, heading in enumerate(self._sections, 1)
        )
        introduction = html.escape(self._introduction)
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{title}</title><style>{STYLE}</style></head><body>"
            f"<h1>{title}</h1><p>{introduction}</p><nav>{links}</nav>"
            + "\n".join(self._parts)
            + "</body></html>\n"
        )

    def write(self, path: Path) -> Path:
        """Writes the page whole or not at all."""
        write_atomically(path, self.render().encode())
        return path


def table_cell(text: str, tag: str = "td") -> str:
    """A cell; short ones stay on one line where the table scrolls, as on a phone."""
    kind = ' class="short"' if len(text) <= NUM_SHORT else ""
    return f"<{tag}{kind}>{html.escape(text)}</{tag}>"


def card_html(card: Card) -> str:
    """A card as HTML."""
    plain = ["".join(piece.text for piece in line) for line in card.lines]
    alt = html.escape(", ".join(plain))
    shown = "".join(
        '<div class="missing">cannot be read</div>'
        if image is None
        else f'<img loading="lazy" alt="{alt}" src="{data_url(image, CARD_QUALITY)}"'
        + (' style="image-rendering: pixelated">' if max(image.size) <= 64 else ">")
        for image in card.images
    )
    if len(card.images) > 1:
        shown = f'<div class="pair">{shown}</div>'
    first, *rest = ("".join(piece.render() for piece in line) for line in card.lines)
    lines = f"<div>{first}</div>" + "".join(
        f'<div class="quiet">{line}</div>' for line in rest
    )
    title = f' title="{html.escape(card.title)}"' if card.title else ""
    return f"<figure{title}>{shown}<figcaption>{lines}</figcaption></figure>"


def data_url(image: Image.Image, quality: int = 88) -> str:
    """An image as a data: URL; as PNG if it is small or has few colours, else JPEG."""
    file = io.BytesIO()
    if image.mode == "RGB" and image.width * image.height > 64 * 64:
        kind = "jpeg"
        image.save(file, "JPEG", quality=quality)
    else:
        kind = "png"
        image.save(file, "PNG", optimize=True)
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"
