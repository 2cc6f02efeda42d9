"""Blocks of code in the README and the docs do what their pages say."""

import traceback
from pathlib import Path

import pytest
from blocks import Block, BlockError, find_blocks, forget, page_module, run_block

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
BLOCKS = {page: find_blocks(page.read_text()) for page in PAGES}
WITH_BLOCKS = [page for page in PAGES if any(not each.reason for each in BLOCKS[page])]
MIN_SHARE = 0.6
"""Of all blocks, this share must run."""


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.timeout(400)
@pytest.mark.parametrize("page", WITH_BLOCKS, ids=name)
def test_blocks_run(page: Path, page_folder: Path) -> None:
    module = page_module(page)
    errors = []
    try:
        for block in BLOCKS[page]:
            if block.reason is None:
                try:
                    run_block(block, module)
                except Exception as error:
                    errors.append(f"{name(page)}:{line_of(error, page, block)}")
                    errors.append(f"{type(error).__name__}: {error}\n")
    finally:
        forget(module)
    if errors:
        pytest.fail("\n".join(errors), pytrace=False)


def line_of(error: Exception, page: Path, block: Block) -> int:
    """The line of a page at which an error occurred."""
    if isinstance(error, BlockError):
        return error.line
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(page)]
    return lines[-1] or block.line if lines else block.line


def test_most_blocks_run() -> None:
    blocks = [block for page in PAGES for block in BLOCKS[page]]
    marked = [block for block in blocks if block.reason]
    assert len(blocks) > 50
    assert len(blocks) - len(marked) >= MIN_SHARE * len(blocks), counts()


def counts() -> str:
    """How many blocks of each page run, and why others do not."""
    lines = []
    for page in PAGES:
        reasons = [block.reason for block in BLOCKS[page] if block.reason]
        num_run = len(BLOCKS[page]) - len(reasons)
        lines += [f"{name(page)}: {num_run} run, {len(reasons)} do not"]
        lines += [f"    {reason}" for reason in reasons]
    return "\n".join(lines)


def test_reasons_are_sentences() -> None:
    short = [
        f"{name(page)}:{block.line} {block.reason}"
        for page in PAGES
        for block in BLOCKS[page]
        if block.reason and len(block.reason.split()) < 2
    ]
    assert short == []
