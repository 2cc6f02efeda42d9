"""A mistake in the arguments of a command is one sentence."""

from pathlib import Path

import pytest

from t2t.cli import main
from t2t.commands import COMMANDS
from t2t.commands.parse import parse


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "train --epochz 3",
            "t2t train has no option --epochz. Did you mean --epochs",
        ),
        ("train --lr 0.1", "no option --lr. Did you mean --set optimizer.lr=VALUE?"),
        ("train --batch-size=8", "Did you mean --set batch_size=VALUE?"),
        ("study tokens --depth 3", "Did you mean --set model_args.depth=VALUE?"),
        ("train --qqqqq 3", "no option --qqqqq. `t2t train --help` lists them."),
        ("train --epochs two", "--epochs takes whole numbers; got two."),
        ("train --epochs 2.5", "--epochs takes whole numbers; got 2.5."),
        ("train --epochs=two", "--epochs takes whole numbers; got two."),
        ("train --checkpoint-minutes x", "--checkpoint-minutes takes numbers; got x."),
        ("train --compile maybe", "--compile takes auto, off, on; got maybe."),
        ("train --epochs", "--epochs needs a value; `t2t train --help` explains"),
        ("train --epochs --fresh", "--epochs needs a value;"),
        ("study tokens --only --dry-run", "--only needs a value;"),
        ("bench t2t_vit_7 --batch-size", "--batch-size needs a value;"),
        (
            "study a --seeds 0 --seeds 1 2",
            "--seeds is given twice; give it once.",
        ),
        (
            "train --epochs 3 --epochs=4",
            "--epochs is given twice; give it once.",
        ),
        (
            "train --set optimizer.lr=1 --set epochs=2 --set optimizer.lr=2",
            "--set optimizer.lr=1 and --set optimizer.lr=2 contradict each other;",
        ),
        (
            "show t2t_vit_7 --set num-heads=1 --set num_heads=2",
            "--set num-heads=1 and --set num_heads=2 contradict each other;",
        ),
        ("train --fresh=yes", "--fresh takes no value; write --fresh."),
        ("train digits extra", "t2t train does not take the argument 'extra'"),
        ("features builtin /", "argument '/'; write --data / for images in that"),
        ("study tokens --seeds 0 a", "--seeds takes whole numbers; got 0 a."),
        ("bench t2t_vit_7 --precision fp32 int8", "--precision takes bf16, fp16, fp32"),
        ("pack", "t2t pack needs SOURCE and DEST; `t2t pack --help` gives examples."),
        ("pack photos", "t2t pack needs DEST;"),
        ("record runs/own", "t2t record needs --out PATH;"),
        ("ship --out mine", "t2t ship needs RUN;"),
        ("train --data -photos", "-photos looks like an option; write --data=-photos."),
        ("models --jsn", "Did you mean --json?"),
        ("train --folder=", "--folder needs a value;"),
        ("ship runs/own --out=", "--out needs a value;"),
        (
            "train --data t-0.tar t-1.tar t-2.tar",
            "take the argument 't-2.tar'; name several shards by a pattern in quotes",
        ),
    ],
)
def test_a_wrong_word_is_reported_in_one_sentence(
    words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("t2t: ")
    assert told.err.count("\n") == 1
    assert sentence in told.err


@pytest.mark.parametrize(
    "command", ["train", "show", "ship", "record", "bench", "plan"]
)
def test_a_name_may_not_be_empty(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main([command, "", *(["--out", "x"] if command in ("ship", "record") else [])])
        == 2
    )
    told = capsys.readouterr().err
    assert told == f"t2t: A value is empty; `t2t {command} --help` gives examples.\n"


def test_a_file_that_is_called_like_an_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-a=b.jpg").touch()
    assert main(["predict", "-a=b.jpg"]) == 2
    assert "write ./-a=b.jpg." in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        "train",
        "train digits --epochs 3 --seed -1 --set optimizer.lr=1e-3 --set seed=2",
        "train --set=epochs=2 --checkpoint_minutes 0.5 --fresh --compile off",
        "predict runs/own - --json",
        "study tokens --seeds 0 1 --only t2t patches --dry-run",
        "bench t2t_vit_7 --batch-size 1 2 --precision bf16 fp16 --grow size --json",
        "record a b c --out d --log x --log y",
        "pack photos packed --short-side 0",
        "show --depth 1 resnet50",
        "train --epochs=3 --set seed=2 --set seed=2",
    ],
)
def test_right_words_pass(words: str) -> None:
    command, *rest = words.split()
    parse(command, COMMANDS[command], rest)


@pytest.mark.parametrize(
    "words",
    [
        "runs/own --top 3 a.jpg b.jpg",
        "runs/own a.jpg --csv b.jpg",
        "runs/own a.jpg b.jpg",
    ],
)
def test_a_list_goes_on_after_options(words: str) -> None:
    values = parse("predict", COMMANDS["predict"], words.split())
    assert values["inputs"] == ("runs/own", "a.jpg", "b.jpg")
