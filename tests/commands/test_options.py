"""Every option of a command reaches what it is for."""

import inspect
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import t2t
from t2t import cli
from t2t.analysis.cost import count
from t2t.cli import main
from t2t.commands import COMMANDS
from t2t.deployment.options import ExportOptions
from t2t.errors import UserError
from t2t.models.create import create_model
from t2t.models.weights import save
from t2t.recipes import find_recipe
from t2t.training.initial_state import build_model
from t2t.training.result import Result
from t2t.training.runtime import Runtime

Output = pytest.CaptureFixture[str]
TRAIN = "t2t.training.train.train"


def given_to(
    target: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a command line calls a function with, which then goes no further."""
    calls = []

    def called(*given: Any, **named: Any) -> None:
        calls.append((given, named))
        raise UserError("That is enough.")

    monkeypatch.setattr(target, called)
    assert main(words.split()) == 2
    (call,) = calls
    return call


@pytest.mark.parametrize(
    ("words", "target", "expected"),
    [
        (
            "train digits --folder here --fresh --device cpu --precision bf16 "
            "--residual fp32 --compile on --micro-batch 3 --parallelism fsdp "
            "--workers 2 --checkpoint-minutes 0.5 --hang-minutes 7",
            TRAIN,
            {
                "folder": "here",
                "fresh": True,
                "runtime": Runtime(
                    device="cpu",
                    precision="bf16",
                    residual="fp32",
                    compile="on",
                    micro_batch=3,
                    parallelism="fsdp",
                    workers=2,
                    checkpoint_minutes=0.5,
                    hang_minutes=7,
                ),
            },
        ),
        (
            "study head --only mean --device cpu --precision bf16 --compile off --json",
            "t2t.lab.studies.run.run_study",
            {
                "only": ("mean",),
                "runtime": Runtime(device="cpu", precision="bf16", compile="off"),
                "quiet": True,
            },
        ),
        (
            "eval builtin --data photos --split test --batch-size 7 --device cpu "
            "--precision bf16 --real --flip",
            "t2t.training.evaluation.evaluate_model.evaluate_model",
            {
                "data": "photos",
                "split": "test",
                "batch_size": 7,
                "device": "cpu",
                "precision": "bf16",
                "real": True,
                "flip": True,
            },
        ),
        (
            "eval run --model resnet18",
            "t2t.models.trained.load_trained",
            {"model": "resnet18"},
        ),
        (
            "ship run --out here --data photos --data-name mine --megabytes 3 "
            "--device cpu",
            "t2t.lab.ship.ship",
            {
                "data": "photos",
                "data_name": "mine",
                "most_megabytes": 3,
                "device": "cpu",
            },
        ),
        (
            "record a b --out here --data-name mine --held-out --log x --log y",
            "t2t.lab.records.record.record",
            {
                "data_name": "mine",
                "held_out": True,
                "logs": [Path("x"), Path("y")],
            },
        ),
        (
            "pack photos packed --short-side 0 --quality 70 --shard-size 9 --workers 3 "
            "--unlabelled",
            "t2t.data.packing.pack.pack",
            {
                "short_side": None,
                "quality": 70,
                "shard_size": 9,
                "num_workers": 3,
                "labels": False,
            },
        ),
        (
            "plan digits --gpus 4 --gpu A100 --parallelism fsdp --per-node 2 "
            "--images 999 --micro-batch 5 --rate 77",
            "t2t.training.forecast.plan.plan",
            {
                "gpu": "A100",
                "parallelism": "fsdp",
                "per_node": 2,
                "num_images": 999,
                "micro_batch": 5,
                "images_per_second": 77,
            },
        ),
        (
            "bench t2t_vit_7 --seconds 0.5 --profile",
            "t2t.lab.bench.measure.measure_cases",
            {"seconds": 0.5, "profiled": True},
        ),
        (
            "bench --recipe digits --seconds 0.5 --profile",
            "t2t.lab.bench.measure_training.measure_recipes",
            {"seconds": 0.5, "profiled": True},
        ),
    ],
    ids=lambda value: value.split()[0] if isinstance(value, str) else "",
)
def test_options_reach_what_they_are_for(
    words: str,
    target: str,
    expected: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, named = given_to(target, words, monkeypatch)
    assert {key: named[key] for key in expected} == expected


def test_cases_are_what_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "bench t2t_vit_7 --mode infer --batch-size 3 --precision fp16"
    (cases, device, _), _ = given_to(
        "t2t.lab.bench.measure.measure_cases",
        f"{words} --image-size 64 --device cpu",
        monkeypatch,
    )
    (case,) = cases
    assert (case.mode, case.batch, case.image_size) == ("infer", 3, 64)
    assert (case.precision, case.launch, device.type) == ("fp16", "eager", "cpu")


def test_a_gpu_that_emulates_bf16_is_measured_in_fp16(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turing = torch.device("cuda")
    monkeypatch.setattr("t2t.training.distributed.find_device", lambda name: turing)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (7, 5))
    (cases, *_), _ = given_to(
        "t2t.lab.bench.measure.measure_cases", "bench t2t_vit_7", monkeypatch
    )
    assert [case.precision for case in cases] == ["fp16"]


@pytest.mark.parametrize("command", ["train", "bench", "eval"])
def test_help_names_the_precision_of_every_device(command: str, capsys: Output) -> None:
    main([command, "--help"])
    words = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "bf16 on CUDA, fp16 on GPUs before Ampere, else fp32" in words


def test_files_are_fed_as_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "bench t2t_vit_7 --data photos --repeat 2 --resident --workers 3"
    (recipes, runtimes, _, files, _), _ = given_to(
        "t2t.lab.bench.measure_training.measure_recipes", words, monkeypatch
    )
    assert recipes[0].name == "imagenet.t2t_vit_7"
    assert runtimes[0].workers == 3
    assert (files.data, files.repeat, files.resident) == ("photos", 2, True)


def test_images_are_seen_as_many_at_once_as_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"dim": 16, "depth": 1, "num_heads": 1, "token_dim": 8, "image_size": 8}
    save(create_model("t2t_vit_7_32", **small), tmp_path)
    (_, words, _, top, batch_size), _ = given_to(
        "t2t.serving.predictor.Predictor.predict_named",
        f"predict {tmp_path} a.png b.png --top 2 --batch-size 9 --device cpu",
        monkeypatch,
    )
    assert (words, top, batch_size) == (("a.png", "b.png"), 2, 9)


def test_a_plan_counts_the_recipes_model(monkeypatch: pytest.MonkeyPatch) -> None:
    _, named = given_to("t2t.training.forecast.plan.plan", "plan digits", monkeypatch)
    cost = count(build_model(find_recipe("digits"), num_classes=1000))
    assert named["parameters"] == cost.parameters
    assert named["gmacs"] == cost.macs / 1e9
    assert named["activation_bytes"] == cost.activation_bytes_bf16


def test_a_run_that_was_stopped_ends_as_a_shell_says_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TRAIN, lambda *_, **__: Result(Path("here"), False, {}))
    assert main(["train", "digits"]) == 130


def test_a_seed_is_the_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    (recipe,), _ = given_to(TRAIN, "train cifar10 --seed 3", monkeypatch)
    assert recipe == replace(find_recipe("cifar10"), seed=3)


@pytest.mark.parametrize("rank", [0, 1])
def test_one_of_torchruns_processes_reports_the_end(
    rank: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", str(rank))
    ended = Result(Path("here"), True, {}, already_finished=True)
    monkeypatch.setattr(TRAIN, lambda *_, **__: ended)
    monkeypatch.setattr(
        "t2t.commands.train_summary.train_summary", lambda *_: "The end."
    )
    assert main(["train", "digits"]) == 0
    words = "here is already trained; --fresh trains it again.\nThe end.\n"
    assert capsys.readouterr().out == ("" if rank else words)


def test_one_of_many_processes_reports_a_mistake(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def end(seconds: float) -> None:
        raise SystemExit("as torchrun ends it, when the first process has spoken")

    monkeypatch.setattr(cli.time, "sleep", end)
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SystemExit, match="as torchrun ends it"):
        main(["shwo"])
    assert not capsys.readouterr().err
    monkeypatch.setattr(cli.time, "sleep", lambda seconds: None)
    for rank in ("1", "0"):  # or tells it after all, if the first has not met it
        monkeypatch.setenv("RANK", rank)
        assert main(["shwo"]) == 2
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        "train digits",
        "eval builtin",
        "predict a.png",
        "show t2t_vit_7",
        "plan digits",
        "bench --recipe digits",
        "study tokens",
        "record runs/a --out here",
        "ship runs/a --out here",
        "pack digits packed",
    ],
    ids=lambda words: words.split()[0],
)
def test_code_is_run_before_names_are_looked_up(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.png").touch()
    Path("mine.py").write_text("raise ValueError('it ran')")
    assert main([*words.split(), "--code", "mine.py"]) == 2
    assert "mine.py, line 1: ValueError: it ran." in capsys.readouterr().err


def test_code_is_an_option_of_all_commands_but_those_that_list() -> None:
    without = [
        name
        for name, command in COMMANDS.items()
        if "code" not in inspect.signature(command).parameters
    ]
    assert without == ["recipes", "models", "completion"]


@pytest.mark.parametrize(
    ("name", "of_the_shell"),
    [
        ("train", ""),
        ("evaluate", "picture report train_images json"),
        ("probe", "out json"),
        ("features", "out picture json"),
        ("neighbors", "picture json"),
        ("look", "inputs out json"),
        ("export", "inputs"),
    ],
)
def test_functions_take_the_options_of_their_commands(
    name: str, of_the_shell: str
) -> None:
    command = COMMANDS["eval" if name == "evaluate" else name]
    options = inspect.signature(command).parameters.keys() - {"code", "log_level"}
    keywords = {*inspect.signature(getattr(t2t, name)).parameters}
    if name == "export":
        keywords |= {field.name for field in fields(ExportOptions)}
    assert options - {*of_the_shell.split()} <= keywords
