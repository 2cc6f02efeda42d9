"""The command line as users meet it, with right and wrong words."""

import errno
import io
import json
import math
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from t2t import __version__, cli
from t2t.cli import COMMANDS, main
from t2t.commands.tables import find_models, model_table, recipe_table
from t2t.data.decoding.damage import Damage, DamagedImage
from t2t.errors import ReportedError, UserError
from t2t.models.zoo import ZOO
from t2t.recipes import about, all_recipes
from t2t.screen import print_json, show_progress
from t2t.user_code import LOADED, load_code, unload

Output = pytest.CaptureFixture[str]
HEAVY = ("torch", "timm", "torchvision", "matplotlib", "sklearn", "scipy")


@pytest.mark.parametrize(
    "words",
    [["--help"], ["show", "--help"], ["models", "--json"], ["recipes"]],
    ids=" ".join,
)
def test_nothing_heavy_is_imported_to_help_or_list(words: list[str]) -> None:
    script = (
        "import sys; from t2t.cli import main; code = main(sys.argv[1:]); "
        f"heavy = [name for name in {HEAVY} if name in sys.modules]; "
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    # Time of the processor, since the clock also counts what else the machine does.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.5


@pytest.mark.parametrize("module", ["t2t.errors", "tyro", "t2t.commands", "torch"])
@pytest.mark.parametrize("way", ["-m t2t", "/usr/bin/t2t"])
def test_ctrl_c_during_imports_is_quiet(module: str, way: str) -> None:
    script = f"""
import os, runpy, signal, sys

class Finder:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
sys.orig_argv = ["python", *{way!r}.split()]
sys.argv = ["t2t", "show", "t2t_vit_14"]
if "-m" in sys.orig_argv:
    runpy.run_module("t2t", run_name="__main__")
else:
    from t2t.__main__ import main
    sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_ctrl_c_while_python_ends_is_quiet() -> None:
    script = """
import atexit, os, runpy, signal, sys

sys.orig_argv = ["python", "-m", "t2t"]
sys.argv = ["t2t", "--version"]
atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
runpy.run_module("t2t", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True)
    assert (done.returncode, done.stderr) == (130, b"")


def test_an_import_of_the_package_leaves_ctrl_c_alone() -> None:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_help_names_every_command_and_gives_examples(capsys: Output) -> None:
    assert main(["--help"]) == 0
    overview = capsys.readouterr().out
    for name in COMMANDS:
        assert f"• {name} " in overview
        assert main([name, "--help"]) == 0
        assert f"  t2t {name} " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("models", "[FILTER]"),
        ("recipes", "[FILTER]"),
        ("train", "[RECIPE]"),
        ("study", "[NAME]"),
        ("bench", "[MODEL...]"),
    ],
)
def test_words_that_may_be_left_out_look_so(
    command: str, word: str, capsys: Output
) -> None:
    assert main([command, "--help"]) == 0
    usage = capsys.readouterr().out.partition("\n")[0]
    assert usage.startswith(f"usage: t2t {command} ")
    assert f" {word}" in usage


def test_help_is_the_same_beside_other_words(capsys: Output) -> None:
    main(["show", "--help"])
    alone = capsys.readouterr().out
    main(["show", "t2t_vit_14", "--depth", "1", "--help"])
    assert capsys.readouterr().out == alone
    assert "NAME" in alone.splitlines()[0]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("columns", [1, 6, 10])
def test_no_terminal_is_too_narrow_for_help(
    columns: int, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words, option in (
        (["--help"], "• train"),
        (["train", "--help"], "--parallelism"),
    ):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert main(words) == 0
        assert option in capsys.readouterr().out


def test_no_words_show_the_commands(capsys: Output) -> None:
    assert main([]) == 0
    assert "• models" in capsys.readouterr().out


def test_version(capsys: Output) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"t2t {__version__}\n"


def test_models_lists_all_in_full_where_there_is_no_terminal(capsys: Output) -> None:
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[3:]] == list(ZOO)
    assert all(
        entry.about in line for entry, line in zip(ZOO.values(), lines[3:], strict=True)
    )
    (line,) = (line for line in lines if line.startswith("t2t_vit_14 "))
    assert line.split()[1:7] == ["21.5", "4.800", "224", "21.5", "4.8", "81.5"]
    assert not any("\x1b" in line or line != line.rstrip() for line in lines)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("resnet1", {"resnet101", "resnet152", "resnet18_32"}),
        ("t2t_vit_t_*", {"t2t_vit_t_14", "t2t_vit_t_19", "t2t_vit_t_24"}),
        ("T2T-ViT-24", {"t2t_vit_24"}),
    ],
)
def test_models_are_found_by_part_or_pattern(pattern: str, expected: set[str]) -> None:
    assert set(find_models(pattern)) == expected


def test_models_as_json(capsys: Output) -> None:
    assert main(["models", "t2t_vit_14_384", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {
            "name": "t2t_vit_14_384",
            "about": ZOO["t2t_vit_14_384"].about,
            "built_by": "t2t",
            "parameters": 21_465_806,
            "gmacs": 16.419,
            "image_size": [384, 384],
            "paper": {"params": 21.5, "macs": 17.1, "top1": 83.3},
        }
    ]


def test_a_log_gets_ten_lines_of_progress(capsys: Output) -> None:
    with show_progress("packing") as warn:
        for done in range(2001):
            warn(done, 2000)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"packing: {done:,} of 2,000" for done in range(200, 2001, 200)]


@pytest.mark.parametrize("rank", [0, 1])
def test_of_torchruns_processes_one_draws_a_bar(
    rank: int, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("RANK", str(rank))
    with show_progress("evaluating") as warn:
        if rank == 0:  # the only one that is told
            warn(1, 2)
    assert bool(capsys.readouterr().err) == (rank == 0)


def test_a_number_that_is_not_finite_is_none_in_json(capsys: Output) -> None:
    print_json({"loss": [math.nan, math.inf, -math.inf, 0.1], "name": "é \u2028"})
    told = capsys.readouterr().out
    assert json.loads(told) == {"loss": [None, None, None, 0.1], "name": "é \u2028"}
    assert "é" in told


@pytest.mark.parametrize(("width", "about"), [(60, False), (80, False), (140, True)])
def test_model_table_fits_the_terminal(width: int, about: bool) -> None:
    file = io.StringIO()
    console = Console(
        file=file, width=width, height=50, force_terminal=True, color_system=None
    )
    console.print(model_table(ZOO, width))
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)
    assert any("what it is" in line for line in lines) is about


@pytest.mark.parametrize(
    ("width", "told"),
    [
        (20, "shows px, epochs, batch."),
        (60, "what each recipe is."),
        (80, "what it is"),
    ],
)
def test_no_name_of_a_recipe_is_cut(width: int, told: str) -> None:
    file = io.StringIO()
    console = Console(
        file=file, width=width, height=50, force_terminal=True, color_system=None
    )
    rows = [(make(), about(make)) for make in all_recipes().values()]
    console.print(recipe_table(rows, width))
    page = file.getvalue()
    assert max(map(len, page.splitlines())) <= width
    assert "…" not in page
    assert told in " ".join(page.split())


def test_show_prints_tokens_parts_items_and_paper(capsys: Output) -> None:
    assert main(["show", "t2t_vit_14"]) == 0
    page = capsys.readouterr().out
    for words in (
        "224×224 → 56×56 → 28×28 → 14×14 = 196 tokens + class token",
        "21,465,806 trained, 4,096 frozen",
        "4.800 G",
        "21.5 M parameters, 4.8 G MACs, 81.5 % ImageNet top-1",
        "blocks.0–13   14 × Block                  20,692,224   4,494.7",
        "└─ head",
        "kernel features      16.1    0.3 %",
        "Not counted: additions",
    ):
        assert words in page
    assert "dropout" in page  # it keeps memory
    assert "drop_path" not in page  # it costs nothing


def test_show_takes_sizes_classes_channels_and_choices(capsys: Output) -> None:
    words = "show t2t_vit_7 --image-size 64x96 --num-classes 5 --in-channels 1 --json"
    model_args = "--set positions=relative --set qkv-bias=true --set mlp_ratio=3"
    assert main([*words.split(), *model_args.split()]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["token_grids"] == [[16, 24], [8, 12], [4, 6]]
    assert facts["prefix_tokens"] == 1
    assert facts["in_channels"] == 1
    assert facts["model_args"]["qkv_bias"] is True
    assert facts["macs"] == sum(facts["macs_by_item"].values())
    parts = {part["name"]: part for part in facts["parts"]}
    assert parts["head"]["parameters"] == 256 * 5 + 5
    assert parts["encoder.blocks.0.mlp"]["parameters"] == 2 * 256 * 768 + 768 + 256
    assert parts["encoder.positions"]["parameters"] > 0


def test_show_knows_timms_models(capsys: Output) -> None:
    assert main(["show", "resnet18", "--depth", "1", "--image-size", "64"]) == 0
    page = capsys.readouterr().out
    assert "resnet18  built by timm" in page
    assert "├─ layer4    Sequential" in page
    assert "11,689,512" in page


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("shwo t2t_vit_14", "There is no command 'shwo'. Did you mean show"),
        ("models t2t_vit_41", "No model matches 't2t_vit_41'. Did you mean"),
        ("show t2t_vit_144", "There is no model 't2t_vit_144'. Did you mean"),
        ("show t2t_vit_14 --image-size big", "write 224 or, height first, 192x256"),
        ("show t2t_vit_14 --image-size 1x2x3", "--image-size 1x2x3 is not a size"),
        ("show t2t_vit_14 --in-channels 0", "--in-channels 0 is too small"),
        ("show t2t_vit_14 --set mixer", "'mixer' sets nothing; write NAME=VALUE"),
        (
            "show t2t_vit_14 --image-size 64 --set image_size=32",
            "--image-size 64 and --set image_size=32 contradict each other; give one",
        ),
        ("show t2t_vit_14 --set mixr=ghost", "Did you mean mixer?"),
        ("show t2t_vit_14 --set mixer=gost", "allowed: attention, attention_se"),
        ("show t2t_vit_14 --set depth=two", "depth takes a whole number"),
        ("show t2t_vit_14 --set depth=0", "depth=0 must be 1 or more"),
        ("show t2t_vit_14 --set splits=(3,2,1)", "splits takes triples, such as"),
        ("show t2t_vit_14 --set qkv_bias=2", "qkv_bias takes true or false"),
        ("show resnet18 --set depth=3", "resnet18 is built by timm"),
        ("show t2t_vit_14 --image-size 1000000", "is too large: give 65535 or less"),
        (
            "show vit_small_16 --image-size 65535 --set patch_size=1",
            "asks for images of 4,294,836,225 pixels; at most 16,777,216 are",
        ),
        ("show inception_v3 --image-size 20", "cannot take images of 20×20 pixels"),
    ],
)
def test_a_mistake_is_one_sentence(words: str, sentence: str, capsys: Output) -> None:
    assert main(words.split()) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("t2t: ")
    assert sentence in output.err
    assert output.err.count("\n") == 1


def raising(error: BaseException) -> Callable[[], None]:
    def command() -> None:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code"),
    [(KeyboardInterrupt(), 130), (UserError("No."), 2), (SystemExit(3), 3)],
)
def test_exit_codes(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cli.COMMANDS, "fail", raising(error))
    assert main(["fail"]) == code


def test_an_error_in_a_users_file_is_one_sentence(
    capsys: Output, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("T2T_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "mine.py"
    file.write_text("def f():\n    raise OSError(28, 'no room')")
    monkeypatch.setitem(cli.COMMANDS, "fail", load_code(file).f)
    assert main(["fail"]) == 2
    expected = f"t2t: {file}, line 2: OSError: [Errno 28] no room.\n"
    assert capsys.readouterr().err == expected
    unload(LOADED[-1])


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (errno.EIO, "cannot be opened (Input/output error): fix that, or name"),
        (errno.ENOTCONN, "not because of the file itself: check the disk or network"),
        (errno.EMFILE, "not because of the file itself: allow more open files"),
    ],
)
def test_a_disk_that_fails_is_one_sentence(
    number: int, sentence: str, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = OSError(number, os.strerror(number), "/mnt/photos")
    monkeypatch.setitem(cli.COMMANDS, "fail", raising(error))
    assert main(["fail"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("t2t: /mnt/photos ")
    assert sentence in told


def test_of_torchruns_processes_one_speaks_but_for_what_it_met_alone(
    capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")

    def alone() -> None:
        Damage(limit=0).record(DamagedImage("a.jpg", "cut short"))

    slept: list[float] = []
    monkeypatch.setattr(cli.time, "sleep", slept.append)
    for command, told in ((raising(ReportedError("No.")), 0), (alone, 1)):
        monkeypatch.setitem(cli.COMMANDS, "fail", command)
        assert main(["fail"]) == 2
        assert capsys.readouterr().err.count("t2t: ") == told
    assert not slept


@pytest.mark.parametrize(
    "words",
    ["predict a.jpg", "recipes", "study tokens", "bench t2t_vit_7", "train --dry-run"],
)
def test_what_is_for_one_process_is_refused_to_several(
    words: str, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(words.split()) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "runs as one process, but WORLD_SIZE=2 is set; start it" in told.err
    assert main([words.split()[0], "--help"]) == 0


def test_several_processes_may_train_and_evaluate(
    capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for words in (["train", "nothing"], ["eval"]):
        assert main(words) == 2
        assert "one process" not in capsys.readouterr().err
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert main(["recipes", "digits"]) == 0


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = f"{sys.executable} -m t2t models | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode in (0, 141)
    assert done.stderr == ""


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_what_an_encoding_lacks_is_escaped(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = io.BytesIO()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", io.TextIOWrapper(said, encoding, "strict"))
        assert main(["show", "t2t_vit_7_32", "--depth", "0"]) == 0
        print_json({"class": "Vögel \udce9"})
        sys.stdout.flush()
        page, _, facts = said.getvalue().partition(b"{")
    assert ("→" in page.decode(encoding)) == (encoding == "utf-8")
    assert json.loads(b"{" + facts) == {"class": "Vögel \udce9"}


def test_a_closed_output_is_no_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["models"]) == main(["models", "--json"]) == 0


def test_messages_without_standard_error_are_not_among_the_results(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["models", "nothing_like_it"]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
def test_output_that_has_no_room_is_one_sentence() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "t2t", "recipes", "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 1
    assert done.stderr == "t2t: No space left on device; free some space.\n"
