"""How blocks are found, run and compared with what a page shows."""

from pathlib import Path

import pytest
from blocks import (
    Block,
    BlockError,
    Command,
    find_blocks,
    find_commands,
    first_missing,
    forget,
    page_module,
    run_block,
    split_line,
)

import t2t
from t2t.models.tokenizers import TOKENIZERS

PAGE = """Text

```console
$ t2t models
```
<!-- not run: needs a GPU -->

```console
$ t2t bench
```

```
not a language
```

- <!-- not run: downloads
  images -->
  ```python
  x = 1
  ```

<!-- not run: belongs to the text below -->
Some text.

```python
y = 2
```
"""


def block(code: str, language: str = "console") -> Block:
    return Block(language, 1, code, None)


def test_blocks_are_found_with_the_reasons_before_them() -> None:
    found = find_blocks(PAGE)
    assert [(each.language, each.line, each.code) for each in found] == [
        ("console", 4, "$ t2t models\n"),
        ("console", 9, "$ t2t bench\n"),
        ("python", 19, "x = 1\n"),
        ("python", 26, "y = 2\n"),
    ]
    reasons = [each.reason and " ".join(each.reason.split()) for each in found]
    assert reasons == [None, "needs a GPU", "downloads images", None]


def test_a_command_goes_on_after_a_backslash_and_its_output_follows() -> None:
    code = "$ t2t models \\\n    t2t_vit_t\nmodel\n\n$ t2t recipes\n"
    assert find_commands(block(code)) == [
        Command(1, "t2t models  t2t_vit_t", ["model", ""]),
        Command(5, "t2t recipes", []),
    ]
    with pytest.raises(BlockError, match="output is shown before"):
        find_commands(block("t2t models\n"))


def test_a_line_is_split_at_pipes_and_ends_in_a_file() -> None:
    command = Command(1, "find . -name '*.jpg' | t2t predict -  > out.csv  # all", [])
    assert split_line(command) == (
        [["find", ".", "-name", "*.jpg"], ["t2t", "predict", "-"]],
        "out.csv",
    )


@pytest.mark.parametrize("words", ["t2t models && ls", "curl x", "t2t serve x &"])
def test_what_cannot_be_run_says_to_mark_it(words: str) -> None:
    with pytest.raises(BlockError, match="mark the block"):
        split_line(Command(1, words, []))


def test_a_failing_command_fails_the_block_with_its_line() -> None:
    with pytest.raises(BlockError, match="There is no command 'trian'") as failed:
        run_block(block("$ t2t models t2t_vit_14\n$ t2t trian\n"), page_module(Path()))
    assert failed.value.line == 2


def test_a_pipe_gives_what_is_printed_to_the_next_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_block(
        block("$ t2t models --json | head -n 1 > first\n$ cat first\n[\n"),
        page_module(Path()),
    )
    assert Path("first").read_text() == "[\n"


def test_a_page_that_shows_other_output_fails() -> None:
    right = "$ t2t models t2t_vit_t_14\n...\nt2t_vit_t_14   99.9   6.1 …\n"
    run_block(block(right), page_module(Path()))
    with pytest.raises(BlockError, match="does not print what the page shows"):
        run_block(block(right.replace("t_14 ", "t_15 ")), page_module(Path()))


@pytest.mark.parametrize(
    ("shown", "missing"),
    [
        (["top-1  98.3 %  ████", "speed  …  images/s"], None),
        (["...", "1 epochs of 3 steps"], None),
        (["epoch 2/9  top-1 3 %"], None),
        (["epoch 1/9  top-1 3 %"], "epoch 1/9  top-1 3 %"),
        (["top-5  98.3 %"], "top-5  98.3 %"),
        (["speed … images/s", "top-1 98.3 %"], "top-1 98.3 %"),
    ],
)
def test_numbers_and_bars_may_differ_and_words_may_not(
    shown: list[str], missing: str | None
) -> None:
    printed = "top-1   7.1 %   ██\nspeed 1,200 images/s\n12 epochs of 1 step\n"
    assert first_missing(shown, printed) == missing


def test_what_a_page_registers_is_taken_back() -> None:
    module = page_module(Path("page.md"))
    code = """
        import t2t

        @t2t.register_tokenizer("of_a_page")
        class Own(t2t.Tokenizer):
            pass
        """
    lines = [line[8:] for line in code.splitlines()]
    run_block(block("\n".join(lines), "python"), module)
    assert "of_a_page" in TOKENIZERS
    assert issubclass(TOKENIZERS["of_a_page"], t2t.Tokenizer)
    forget(module)
    assert "of_a_page" not in TOKENIZERS
