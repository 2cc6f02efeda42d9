"""The page: whole, without outside requests, and with every text escaped."""

import re
from pathlib import Path

from PIL import Image

from t2t.analysis.html_page import Card, HtmlPage, Text


def a_page() -> HtmlPage:
    page = HtmlPage("Mistakes <of> a model", "What it got & why")
    page.section("Pictures", "Two of them.")
    small, large = Image.new("L", (8, 8)), Image.new("RGB", (200, 100), "red")
    page.pictures([(small, 'cat "a"'), (large, "dog <b>")], pixelated=True)
    page.section("Table")
    page.table(["class", "images"], [("cat & dog", 3)])
    page.paragraph("The end.", quiet=True)
    return page


def test_texts_are_escaped_and_sections_linked() -> None:
    text = a_page().render()
    assert "Mistakes &lt;of&gt; a model" in text
    assert '<td class="short">cat &amp; dog</td>' in text
    assert 'alt="cat &quot;a&quot;"' in text
    assert "dog &lt;b&gt;" in text
    assert '<a href="#section-2">Table</a>' in text
    assert '<h2 id="section-2">Table</h2>' in text


def test_the_page_makes_no_requests(tmp_path: Path) -> None:
    file = a_page().write(tmp_path / "page.html")
    text = file.read_text()
    addresses = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert [each.split(",")[0] for each in addresses if each[0] != "#"] == [
        "data:image/png;base64",
        "data:image/jpeg;base64",
    ]
    assert "http" not in text


def test_cards_show_pairs_and_what_is_missing() -> None:
    page = HtmlPage("Cards")
    page.heading("cat & dog")
    image = Image.new("L", (8, 8))
    large = Image.new("RGB", (128, 128), "red")
    lines = ((Text("cat → "), Text("<dog>", "wrong")), (Text("1.jpg"),))
    page.cards([Card((image, None), lines, title='a "b"'), Card((large,), lines)])
    text = page.render()
    assert "<h3>cat &amp; dog</h3>" in text
    assert text.count('<div class="pair">') == 1
    assert "cannot be read" in text
    assert '<span class="wrong">&lt;dog&gt;</span>' in text
    assert 'title="a &quot;b&quot;"' in text
    assert text.count('pixelated">') == 1  # of the small image


def test_drawings_keep_their_svg_and_escape_their_captions() -> None:
    page = HtmlPage("Drawings")
    page.drawings([("<svg><path/></svg>", "a <b>"), ("<svg></svg>", "two")])
    text = page.render()
    assert '<figure class="drawing"><svg><path/></svg>' in text
    assert "<figcaption>a &lt;b&gt;</figcaption>" in text
    assert text.count('<figure class="drawing">') == 2
