"""What docs/data.md says."""

from pathlib import Path

from t2t.data.sources.named import NAMES

PAGE = Path(__file__).parents[2] / "docs" / "data.md"


def test_the_page_names_every_data_set():
    page = PAGE.read_text()
    for name in NAMES:
        assert f"`{name}`" in page
