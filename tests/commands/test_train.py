"""`t2t train`, `recipes`, `pack` and `plan` as users meet them."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from t2t.cli import main
from t2t.commands.train_summary import (
    choice_notes,
    files_and_commands,
    notes,
    result_line,
    sparkline,
)
from t2t.config import to_json
from t2t.errors import UserError
from t2t.models.weights import load_weights
from t2t.recipes import find_recipe
from t2t.recipes.choose import RecipeOptions, choose_recipe
from t2t.recipes.open_recipe import DIGITS, UNNAMED, open_recipe
from t2t.recipes.settings import apply_settings, schedule_notes
from t2t.tasks.classify import TOP1
from t2t.training import train as train_module
from t2t.training.initial_state import build_model
from t2t.training.run_files import write_json

Output = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("train --workers 0", "--workers 0 is too small: give 1 or more."),
        ("train --checkpoint-minutes 0", "--checkpoint-minutes 0 is too small"),
        ("train --hang-minutes -1", "--hang-minutes -1 must be from 0 to 10,000."),
        ("train --hang-minutes nan", "--hang-minutes nan must be from 0 to 10,000."),
        (
            "train --parallelism wide",
            "--parallelism takes ddp, fsdp, hybrid; got wide.",
        ),
        ("train --workers 100000", "--workers 100000 is too large: give 1024 or less."),
        ("train --micro-batch 0", "--micro-batch 0 is too small: give 1 or more."),
        ("train --epochs 0", "--epochs 0 is too small: give 1 or more."),
        ("train --seed -1", "--seed -1 is too small: give 0 or more."),
        ("train --set name=../../evil", "name='../../evil' must be a plain name"),
        ("train --set lr=3", "no setting 'lr'. Did you mean optimizer.lr?"),
        ("train --set depth=3", "no setting 'depth'. Did you mean model_args.depth?"),
        ("train --set mix_mode=x", "Did you mean augmentation.mix_mode?"),
        (
            "train --data one --set data=two",
            "--data one and --set data=two contradict each other; give one of them.",
        ),
        ("train --seed 3 --set seed=5", "--seed 3 and --set seed=5 contradict each"),
        ("train --epochs 3 --set epochs=5", "--epochs 3 and --set epochs=5 contradict"),
        (
            "train cifar10 --set channels=4",
            "channels=4 does not allow colour augmentation; set "
            "augmentation.rand_augment=none.",
        ),
        (
            "train --set model_args.depth=x",
            "model_args.depth=x is not allowed: model_args.depth takes a whole number.",
        ),
        ("train --set model_args.splits=3", "splits takes triples, such as"),
        ("train --set model_args.splits={[]:1}", "splits takes triples, such as"),
        (f"train --set epochs={3000 * '-'}1", "epochs takes a whole number."),
        ("plan digits --set model_args.deepth=3", "Did you mean model_args.depth"),
        (
            "train --set model_args.image_size=32",
            "model_args.image_size cannot be set: it is the recipe's image_size; leave",
        ),
        ("train --set model_args.num_classes=5", "the data has the number of classes"),
        ("train --set model_args.pool=none", "per image; choose class or mean."),
        (
            "train transfer.cifar10 --data digits",
            "transfer.cifar10 fine-tunes trained weights (optimizer.body_lr="
            "0.0005), but has none: add --from WEIGHTS, or train from",
        ),
        ("train transfer --data digits --dry-run", "add --from WEIGHTS, or train"),
        ("train nowhere/recipe.json", "There is no recipe nowhere/recipe.json;"),
        ("pack photos packed --workers -1", "--workers -1 is too small"),
        ("pack digits packed --short-side -1", "or --short-side 0 to keep the size"),
        ("pack digits /dev/null/p", "p cannot be written to (Not a directory): fix"),
        ("plan digits --micro-batch 0", "--micro-batch 0 is too small"),
        ("ship mine --out here --megabytes 0", "--megabytes 0 is too small"),
        ("plan digits --measured a.json", "--measured a.json cannot be read (No such"),
        ("plan digits --rate 9 --measured a.json", "are mutually exclusive"),
        ("plan digits --rate inf", "--rate inf must be more than 0, in images/s."),
        ("plan digits --rate 0", "--rate 0 must be more than 0, in images/s."),
        ("recipes zzz", "No recipe has 'zzz' in its name. `t2t recipes` lists all."),
        ("recipes none.py", "none.py cannot be read (No such file or directory)."),
    ],
)
def test_a_mistake_is_one_sentence(
    words: str, sentence: str, capsys: Output, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert sentence in told.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "command",
    ["train {} --dry-run", "train {}", "plan {}", "bench --recipe {}", "study tokens"],
)
def test_an_unknown_augmentation_or_task_is_one_sentence(
    command: str, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plain = to_json(find_recipe("cifar10.sprint"))
    for name, sentence in {
        "rand_augment_operations": "t2t: augmentation='wobble' is not known; allowed:",
        "task": "t2t: task='wobble' is not known; allowed: byol,",
    }.items():
        changes: dict[str, Any] = {"task": "wobble"}
        settings = ["--set", "task=wobble"]
        if name != "task":
            own = {"rand_augment": "rand-m9", name: ["invert", "wobble"]}
            changes = {"augmentation": {**plain["augmentation"], **own}}
            settings = ["--set", "augmentation.rand_augment=rand-m9"]
            settings += ["--set", f"augmentation.{name}='invert','wobble'"]
        write_json(tmp_path / "mine.json", {**plain, **changes})
        words = command.format("mine.json").split()
        assert main([*words, *(settings if "study" in words else [])]) == 2
        told = capsys.readouterr()
        assert told.out == ""
        assert told.err.count("\n") == 1
        assert told.err.startswith(sentence)


def test_a_misspelt_choice_deletes_nothing(tmp_path: Path, capsys: Output) -> None:
    folder, recipe = tmp_path / "run", to_json(find_recipe("digits"))
    folder.mkdir()
    write_json(folder / "recipe.json", recipe)
    (folder / "model.safetensors").write_text("dear")
    before = sorted(folder.iterdir())
    write_json(tmp_path / "misspelt.json", {**recipe, "model_args": {"depht": 3}})
    words = ["train", str(tmp_path / "misspelt.json"), "--folder", str(folder)]
    assert main([*words, "--fresh"]) == 2
    assert "Did you mean depth?" in capsys.readouterr().err
    left = [path for path in folder.iterdir() if path.name != ".lock"]
    assert sorted(left) == before
    assert (folder / "model.safetensors").read_text() == "dear"


def test_a_model_that_cannot_be_is_no_other_recipe(
    tmp_path: Path, capsys: Output
) -> None:
    write_json(tmp_path / "recipe.json", to_json(find_recipe("digits")))
    write_json(tmp_path / "result.json", {})
    words = ["train", "--folder", str(tmp_path), "--set", "model_args.num_heads=5"]
    assert main(words) == 2
    told = capsys.readouterr().err
    assert "dim=96 is not divisible by num_heads=5" in told
    assert "another recipe" not in told


def test_a_recipe_is_read_from_any_file(tmp_path: Path) -> None:
    recipe = find_recipe("digits")
    write_json(tmp_path / "recipe.json", to_json(recipe))
    write_json(tmp_path / "mine.json", {**to_json(recipe), "epochs": 7})
    assert open_recipe(str(tmp_path / "mine.json")).epochs == 7
    assert to_json(open_recipe(str(tmp_path), None)) == to_json(recipe)
    (tmp_path / "list.json").write_text("[1, 2]")
    with pytest.raises(UserError, match="should hold a JSON object, and holds a list"):
        open_recipe(str(tmp_path / "list.json"), None)


def test_a_run_that_was_moved_resumes_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: list[str | None] = []

    def start(*_: object, folder: str | None, **__: object) -> None:
        folders.append(folder)
        raise UserError("No more.")

    monkeypatch.setattr(train_module, "train", start)
    run = tmp_path / "moved"
    run.mkdir()
    write_json(run / "recipe.json", to_json(find_recipe("digits")))
    assert main(["train", str(run)]) == 2
    (run / "metrics.jsonl").write_text('{"step": 1}\n')
    file = str(run / "recipe.json")
    for words in ([str(run)], [str(run), "--epochs", "3"], [file], ["digits"]):
        assert main(["train", *words]) == 2
    assert folders == [None, str(run), None, None, None]


def test_a_file_that_is_no_whole_recipe_is_named(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text("{}")
    with pytest.raises(UserError) as told:
        open_recipe(str(tmp_path / "r.json"), None)
    assert str(told.value) == (
        f"{tmp_path / 'r.json'} is not a recipe. "
        "A Recipe needs the fields name and model."
    )
    (tmp_path / "folder.json" / "recipe.json").mkdir(parents=True)
    with pytest.raises(UserError) as told:
        open_recipe(str(tmp_path / "folder.json"), None)
    path = tmp_path / "folder.json" / "recipe.json"
    assert str(told.value) == f"{path} cannot be read: Is a directory."


def test_a_folder_in_a_recipes_place_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clean").mkdir()
    with pytest.raises(UserError, match=r"did you mean t2t train --data clean\?"):
        open_recipe("clean", None)
    (tmp_path / "digits").mkdir()
    assert open_recipe("digits", None).name == "digits.t2t_vit"
    (tmp_path / "photos").mkdir()
    with pytest.raises(UserError, match=r"did you mean t2t train --data photos\?"):
        choose_recipe("photos", RecipeOptions(), [])
    recipe, _ = choose_recipe("photos", RecipeOptions(), ["data=clean"])
    assert recipe.data == "clean"
    (tmp_path / "imagewoof").mkdir()
    recipe, _ = choose_recipe("photos", RecipeOptions(), [])
    assert recipe.data == "imagewoof"


def test_other_epochs_move_only_a_warmup_that_does_not_fit() -> None:
    recipe = find_recipe("cifar10.sprint")
    assert apply_settings(recipe, 3, ()) == replace(recipe, epochs=3)
    short = apply_settings(recipe, 1, ()).schedule
    assert short == replace(
        recipe.schedule, warmup_epochs=3 / recipe.epochs, floor_epochs=0.0
    )


def test_a_schedule_shrinks_with_epochs_that_are_set() -> None:
    recipe = find_recipe("imagenet.t2t_vit_14")
    assert apply_settings(recipe, None, ("epochs=3",)) == apply_settings(recipe, 3, ())
    short = apply_settings(recipe, None, ("epochs=31",))
    assert (short.schedule, short.epochs) == (recipe.schedule, 31)
    words = ("epochs=3", "schedule.warmup_epochs=2")
    own = apply_settings(recipe, None, words)
    assert (own.schedule.warmup_epochs, own.schedule.floor_epochs) == (2, 30 / 310)
    assert own.schedule.update_every == "step"
    (note,) = schedule_notes(recipe, own, words)
    assert note.endswith(
        "(310 → 3): floor epochs 10 → 0.0968, learning rate updated every step."
    )
    assert schedule_notes(recipe, short, ("epochs=31",)) == []
    with pytest.raises(UserError, match=r"4 warm-up and .* do not fit into epochs=3"):
        apply_settings(recipe, None, ("epochs=3", "schedule.warmup_epochs=4"))


def test_a_shrunk_schedule_is_logged_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"train digits --set epochs=1 --folder {tmp_path / 'run'} --device cpu"
    words += " --set model_args.depth=1 --set model_args.dim=24"
    assert main(words.split()) == 0
    log = (tmp_path / "run" / "log.txt").read_text()
    note = "scaled with the epochs (12 → 1): warm-up epochs 2 → 0.167."
    assert note in log
    assert note in capsys.readouterr().out.replace("\n", " ")
    kept = json.loads((tmp_path / "run" / "recipe.json").read_text())
    assert kept["schedule"]["warmup_epochs"] == 2 / 12


def test_a_test_split_is_named_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for split in ("train", "val", "test"):
        for name in "ab":
            Path("photos", split, name).mkdir(parents=True)
            image = Image.new("RGB", (8, 8), (9 * ord(name), 0, 0))
            image.save(Path("photos", split, name, "1.png"))
    run = tmp_path / "my run"
    run.mkdir()
    recipe = replace(find_recipe("digits"), data="photos")
    write_json(run / "recipe.json", to_json(recipe))
    (run / "metrics.jsonl").write_text(
        '{"step": 3, "top1": 98.33, "num_images": 360}\n'
    )
    told = "\n".join(notes(run, {"top1": 98.33}))
    assert (
        "360 validation images: the 95 % confidence interval of top-1 is 96.4 to"
        in told
    )
    assert f"did not use: t2t eval '{run}' --split test" in told
    shutil.rmtree("photos/val")  # then the test split is what it was validated by
    assert "--split test" not in "".join(notes(run, {"top1": 98.33}))
    shutil.rmtree("photos")
    assert "--split test" not in "".join(notes(run, {"top1": 98.33}))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "Epoch 7 had 90.00 %: its weights are in best.safetensors, chosen by the"),
        ({"keep": "best"}, "weights of epoch 7, chosen by the validation images, on"),
        ({"keep": "best"}, "the last epoch (9) had 80.00 %"),
        ({"best_epoch": 9}, ""),
        ({"stopped_early": "Stopped early.", "best_epoch": 9}, "Stopped early."),
    ],
)
def test_the_page_says_which_weights_a_run_saves(
    changes: dict[str, object], sentence: str, tmp_path: Path
) -> None:
    summary = {
        "keep": "last",
        "best_epoch": 7,
        "best_score": 90.0,
        "last_epoch": 9,
        "last_score": 80.0,
        "stopped_early": None,
        **changes,
    }
    (tmp_path / "best.safetensors").touch()
    found = " ".join(choice_notes(tmp_path, summary, TOP1))
    assert sentence in found
    assert bool(sentence) == bool(found)


def test_the_built_in_weights_bring_their_model(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        for number in range(12):
            image = Image.new("RGB", (300, 200), (number, 0, 0))
            image.save(tmp_path / name / f"{number}.png")
    by_option = RecipeOptions(weights="builtin", data=str(tmp_path), epochs=2)
    recipe, _ = choose_recipe(UNNAMED, by_option)
    assert (recipe.name, recipe.model) == ("fine_tuned", "t2t_vit_7_32")
    assert recipe.image_size == (32, 32)
    load_weights(build_model(recipe, 2), "builtin")
    by_setting = RecipeOptions(data=str(tmp_path), epochs=2)
    assert choose_recipe(UNNAMED, by_setting, ["weights=builtin"])[0] == recipe


def test_the_data_named_are_the_recipes() -> None:
    recipe = find_recipe("cifar10.sprint")
    assert open_recipe("cifar10.sprint", "photos") == replace(recipe, data="photos")
    digits = find_recipe("digits")
    assert open_recipe("digits", "digits") == digits
    assert open_recipe("digits", "photos") == replace(digits, data="photos")


def test_a_folder_of_recipes_stands_for_its_first() -> None:
    assert find_recipe("pretrain").name == "pretrain.moco_v3"


def test_without_a_recipe_the_data_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("recipe.json").write_text("{}")  # of a run in this folder
    assert open_recipe(UNNAMED) == open_recipe(UNNAMED, "digits") == find_recipe(DIGITS)
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(2):
            image = Image.new("RGB", (40, 40), (number, 0, 0))
            image.save(tmp_path / "photos" / name / f"{number}.png")
    by_option, _ = choose_recipe(UNNAMED, RecipeOptions(data="photos"))
    assert (by_option.name, by_option.image_size) == ("own", (32, 32))
    by_setting, _ = choose_recipe(UNNAMED, RecipeOptions(), ["data=photos"])
    assert by_setting == by_option


def test_mean_and_deviation_follow_the_channels() -> None:
    recipe = find_recipe("cifar10.sprint")
    gray = apply_settings(recipe, None, ("channels=1",)).augmentation
    assert gray.mean == (0.4734,)
    assert gray.std == (0.2507,)
    assert (
        apply_settings(recipe, None, ("channels=4",)).augmentation.mean == (0.4734,) * 4
    )
    assert apply_settings(recipe, None, ("channels=3",)) == apply_settings(
        recipe, None, ()
    )
    own = apply_settings(recipe, None, ("augmentation.mean=0.3", "channels=1"))
    assert own.augmentation.mean == (0.3,)


def test_a_choice_may_be_called_none() -> None:
    recipe = apply_settings(find_recipe("digits"), None, ("model_args.positions=none",))
    assert recipe.model_args["positions"] == "none"


def test_fewer_gpus_than_a_machine_has_are_rehearsed(capsys: Output) -> None:
    assert main(["plan", "digits", "--gpus", "2", "--rehearse"]) == 0
    assert "Rehearsed one step as 1 of 2 processes" in capsys.readouterr().err
    assert main(["plan", "digits", "--gpus", "1", "--rehearse"]) == 2
    assert "A rehearsal needs 2 GPUs or more" in capsys.readouterr().err


def test_a_plan_reads_measured_rows(capsys: Output) -> None:
    rows = Path(__file__).parents[2] / "records" / "speed" / "growth-h200.json"
    words = "plan imagenet.t2t_vit_14 --gpus 8 --set batch_size=512"
    assert main([*words.split(), "--measured", str(rows)]) == 0
    printed = capsys.readouterr().out
    assert "device per step  8.6 ms (measured)" in printed
    assert "host per step    2.0 ms (assumed)" in printed
    assert "Measured: device (" in printed


def test_recipes_are_found_in_any_case(capsys: Output) -> None:
    assert main(["recipes", "CIFAR100"]) == 0
    assert "cifar100.t2t_vit_12" in capsys.readouterr().out


def test_a_pack_of_nothing_readable_is_refused(tmp_path: Path, capsys: Output) -> None:
    for name in ("a/1", "a/2", "b/1", "b/2"):
        path = tmp_path / "images" / f"{name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("no image")
    assert main(["pack", str(tmp_path / "images"), str(tmp_path / "packed")]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert "No image for train or val can be read, so nothing was packed" in told
    assert [path.name for path in tmp_path.iterdir()] == ["images"]


def test_a_pack_says_why_an_image_is_left_out(tmp_path: Path, capsys: Output) -> None:
    for name in ("a/1", "a/2", "a/3", "b/1", "b/2", "b/3"):
        path = tmp_path / "images" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(path)
    (tmp_path / "images" / "a" / "4.png").touch()
    (tmp_path / "images" / "a" / "5.heic").touch()
    # Rich would take these brackets for an end that has no beginning.
    assert main(["pack", str(tmp_path / "images"), str(tmp_path / "p[/b]")]) == 0
    told = capsys.readouterr().out.splitlines()
    assert "images/a/5.heic is skipped" in told[0]
    assert told[1].endswith("images/a/4.png: the file is empty.")
    assert told[-1].endswith("p[/b]'")


def test_odd_names_and_a_damaged_image_do_not_spoil_the_end(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(8):
        path = Path("photos", ("train", "val")[number % 2], "ab"[number // 4])
        path.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (30 * number, 0, 0)).save(path / f"{number}.png")
    Path("photos/val/a/1.png").write_text("no image")
    Path("photos/val/a/5.heic").touch()
    Path("photos/val/b/0.png").symlink_to("nowhere.png")
    words = ["train", "--data", "photos", "--epochs", "1", "--device", "cpu"]
    sizes = ["dim=16", "depth=1", "num_heads=1", "token_dim=8"]
    settings = [
        *(f"model_args.{size}" for size in sizes),
        "batch_size=4",
        "name=$x_{$ 熊",
    ]
    assert main([*words, *(part for each in settings for part in ("--set", each))]) == 0
    told = capsys.readouterr().out
    assert "photos/val/a/1.png: not an image that can be read; it is skipped." in told
    assert "photos/val/a/5.heic is skipped" in told
    assert "photos/val/b/0.png: No such file or directory; it is skipped." in told
    # The closing table has the others.
    assert "photos/val/a/3.png   a" in told
    assert "photos/val/a/1.png   a" not in told
    assert Path("runs/$x_{$ 熊/curves.png").stat().st_size > 5_000


def test_bars_rise_with_the_numbers() -> None:
    assert sparkline([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]) == "▁▂▃▄▅▆▇█"
    assert sparkline([3.0, 3.0]) == "▁▁"
    many = sparkline([float(number) for number in range(1000)])
    assert (len(many), many[0], many[-1]) == (40, "▁", "█")
    assert [*many] == sorted(many)


def test_what_to_type_next_can_be_pasted(tmp_path: Path) -> None:
    folder = tmp_path / "my runs"
    folder.mkdir()
    for name in ("model.safetensors", "metrics.jsonl"):
        (folder / name).touch()
    told = files_and_commands(folder)
    assert f"t2t eval '{folder}' " in told
    assert f"t2t predict '{folder}' IMAGE..." in told
    told = files_and_commands(folder, has_head=False)
    assert f"t2t train --from '{folder}' --data LABELLED " in told
    assert f"t2t probe '{folder}' --data LABELLED " in told
    assert "t2t predict" not in told
    (folder / "model.safetensors").unlink()
    assert (
        files_and_commands(folder) == f"  {folder}/metrics.jsonl   the same as numbers"
    )


def test_a_recipe_takes_a_network_of_timms_instead(capsys: Output) -> None:
    words = "plan cifar10.t2t_vit_7 --set model=resnet18_32 --json"
    assert main(words.split()) == 0
    recipe = apply_settings(
        find_recipe("cifar10.t2t_vit_7"), None, ("model=resnet18_32",)
    )
    optimizer = recipe.optimizer
    assert (recipe.model, recipe.model_args, recipe.drop_path) == ("resnet18_32", {}, 0)
    assert (optimizer.name, optimizer.lr) == ("adamw", 1.6e-3)
    assert recipe.token_dropping.keep == 1
    # What a recipe has chosen for its own network stays.
    own = replace(recipe, optimizer=replace(optimizer, name="sgd"))
    assert apply_settings(own, None, ("model=resnet18_32",)) == own
    other = apply_settings(
        find_recipe("cifar10.t2t_vit_7"), None, ("model=t2t_vit_12_32",)
    )
    assert (other.model_args["positions"], other.optimizer.name) == (
        "sinusoid_2d",
        "muon",
    )


def test_a_run_without_ema_prints_no_ema() -> None:
    summary = {
        "recipe": "mine",
        "skipped_steps": 0,
        "top1": 90.0,
        "top1_raw": 90.0,
        "train_minutes": 2,
        "images_per_second": 100,
    }
    assert "top-1 90.00 %\nafter" in result_line(summary, TOP1, has_ema=False)
    expected = "top-1 90.00 % (EMA), 90.00 % (raw)\nafter"
    assert expected in result_line(summary, TOP1, has_ema=True)
