"""The examples of docs/data.md."""

import re
from pathlib import Path

import pytest

from t2t.data.augment.operations import OPERATIONS
from t2t.data.sources.named import NAMED, NAMES

PAGE = Path(__file__).parents[2] / "docs" / "data.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_examples_run(number, capsys):
    before, names = dict(OPERATIONS), dict(NAMED)
    try:
        exec(EXAMPLES[number], {"__name__": "example"})
    finally:
        for registry, kept in ((OPERATIONS, before), (NAMED, names)):
            for name in registry.keys() - kept.keys():
                del registry[name]
    assert capsys.readouterr().out


def test_the_page_shows_a_source_and_an_augmentation():
    assert len(EXAMPLES) == 3
    assert "open_splits(" in EXAMPLES[0]
    assert any("register_source(" in example for example in EXAMPLES)
    assert any("register_augmentation(" in example for example in EXAMPLES)


def test_the_page_names_every_data_set():
    page = PAGE.read_text()
    for name in NAMES:
        assert f"`{name}`" in page
