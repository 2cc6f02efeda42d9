"""What a verb does not take is refused in one sentence, before anything is read."""

from pathlib import Path

import pytest

from t2t.cli import main
from t2t.commands import COMMANDS
from t2t.commands.words import check


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
        ("train --epochs two", "--epochs two will not do: --epochs takes a whole"),
        ("train --epochs 2.5", "--epochs takes a whole number"),
        ("train --epochs=two", "--epochs takes a whole number"),
        ("train --checkpoint-minutes x", "--checkpoint-minutes takes a number"),
        ("train --compile maybe", "--compile takes on, off."),
        ("train --epochs", "--epochs needs a value: --epochs N."),
        ("train --epochs --fresh", "--epochs needs a value: --epochs N."),
        ("study tokens --only --dry-run", "--only needs a value: --only ARM."),
        ("bench t2t_vit_7 --batch", "--batch needs a value: --batch N."),
        (
            "study a --seeds 0 --seeds 1 2",
            "--seeds is given twice; write --seeds 0 1 2",
        ),
        (
            "train --epochs 3 --epochs=4",
            "--epochs 3 and --epochs 4 contradict each other; give one of them.",
        ),
        (
            "train --set optimizer.lr=1 --set epochs=2 --set optimizer.lr=2",
            "--set optimizer.lr=1 and --set optimizer.lr=2 contradict each other;",
        ),
        (
            "show t2t_vit_7 --set num-heads=1 --set num_heads=2",
            "--set num-heads=1 and --set num_heads=2 contradict each other;",
        ),
        ("train --fresh=yes", "--fresh takes no value; leave out =yes."),
        ("train digits extra", "t2t train does not know what 'extra' is for"),
        ("study tokens --seeds 0 a", "--seeds a will not do: --seeds takes a whole"),
        ("bench t2t_vit_7 --precision fp32 int8", "--precision takes bf16, fp16, fp32"),
        ("pack", "t2t pack needs SOURCE and DEST; `t2t pack --help` gives examples."),
        ("pack photos", "t2t pack needs DEST;"),
        ("record runs/mine", "t2t record needs --into PATH;"),
        ("ship --into mine", "t2t ship needs RUN;"),
        ("train --data -photos", "-photos reads as an option; write --data=-photos."),
        ("models --jsn", "Did you mean --json?"),
        ("train --folder=", "--folder needs a value: --folder PATH."),
        ("ship runs/mine --into=", "--into needs a value: --into PATH."),
        (
            "train --data t-0.tar t-1.tar t-2.tar",
            "know what 't-2.tar' is for; name several shards by a pattern in quotes",
        ),
    ],
)
def test_a_wrong_word_is_told_in_one_sentence(
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
        main([command, "", *(["--into", "x"] if command in ("ship", "record") else [])])
        == 2
    )
    told = capsys.readouterr().err
    assert told == f"t2t: A name is empty; `t2t {command} --help` gives examples.\n"


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
        "predict runs/mine - --json",
        "study tokens --seeds 0 1 --only t2t patches --dry-run",
        "bench t2t_vit_7 --batch 1 2 --precision bf16 fp16 --grow size batch --json",
        "record a b c --into d --log x --log y",
        "pack photos packed --short-side 0",
        "show --depth 1 resnet50",
        "train --epochs 3 --epochs=3 --fresh --fresh --set seed=2 --set seed=2",
        "train --epochs --help",
    ],
)
def test_right_words_pass(words: str) -> None:
    command, *rest = words.split()
    check(command, COMMANDS[command], rest)
