"""A trained model judged by its own data and by other."""

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch import nn

from t2t.config import to_json
from t2t.data.sources import open_source
from t2t.errors import UserError
from t2t.models.class_names import imagenet_classes
from t2t.models.create import create_model
from t2t.models.trained import load_trained
from t2t.models.weights import load_with_report, save
from t2t.recipes.digits import t2t_vit
from t2t.training.distributed import World
from t2t.training.evaluation.evaluate_model import evaluate_model
from t2t.training.evaluation.evaluate_source import Throughput
from t2t.training.evaluation.evaluation_data import find_data
from t2t.training.evaluation.report import EvalReport
from t2t.training.evaluation.score import Score

SMALL = {"dim": 16, "depth": 1, "num_heads": 1, "token_dim": 8}


def judged(path: Path, **options: object) -> EvalReport:
    report = evaluate_model(path, device="cpu", **options)  # type: ignore[arg-type]
    assert report is not None
    return report


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What training on the digits leaves, without the training."""
    folder = tmp_path_factory.mktemp("run")
    torch.manual_seed(0)
    model = create_model(
        "t2t_vit_7_32", num_classes=10, in_channels=1, image_size=8, **SMALL
    )
    nn.init.normal_(model.head.weight, std=3.0)
    extra = {
        "image_size": [8, 8],
        "channels": 1,
        "mean": [0.3],
        "std": [0.4],
        "crop_fraction": 1.0,
        "data": "digits",
    }
    names = [str(number) for number in range(10)]
    save(model, folder, name="t2t_vit_7_32", class_names=names, extra=extra)
    (folder / "recipe.json").write_text(json.dumps(to_json(t2t_vit())))
    return folder


def test_a_run_is_evaluated_on_what_it_was_trained_on(run: Path) -> None:
    seen: list[tuple[int, int]] = []
    report = judged(
        run, batch_size=100, progress=lambda done, total: seen.append((done, total))
    )
    assert (report.data, report.split, report.score.num_images) == (
        "digits",
        "val",
        360,
    )
    assert seen == [(100, 360), (200, 360), (300, 360), (360, 360)]
    assert report.images_per_second is not None
    assert report.images_per_second > 0
    assert judged(run / "model.safetensors").score.top1 == report.score.top1
    assert judged(run, split="train", batch_size=2000).score.num_images == 1437


def test_the_score_is_what_the_model_says(run: Path) -> None:
    report = judged(run)
    source = open_source("digits")
    images = torch.stack([torch.as_tensor(source.read(i)) for i in range(len(source))])
    labels = torch.from_numpy(source.labels)
    with torch.inference_mode():
        logits = report.trained.model((images / 255 - 0.3) / 0.4)
    right = logits.argmax(1) == labels
    assert report.score.top1 == pytest.approx(100 * right.float().mean().item())
    near = (logits.topk(5).indices == labels[:, None]).any(1)
    assert report.score.top5 == pytest.approx(100 * near.float().mean().item())
    loss = nn.functional.cross_entropy(logits, labels).item()
    assert report.score.loss == pytest.approx(loss, rel=1e-4)
    rows = report.classes()
    assert [row.top1 for row in rows] == sorted(row.top1 for row in rows)
    assert sum(row.num_images for row in rows) == 360
    worst = rows[0]
    of_class = labels == int(worst.name)
    assert worst.num_correct == int((right & of_class).sum())
    guesses = torch.bincount(logits.argmax(1)[of_class], minlength=10)
    guesses[int(worst.name)] = 0
    name, num = worst.confused_with[0]
    assert (int(guesses.max()), int(guesses[int(name)])) == (num, num)


def test_the_report_is_written_out(run: Path) -> None:
    report = judged(run, batch_size=500)
    facts = json.loads(json.dumps(report.as_json()))
    assert facts["images_per_second"] is None  # one batch is the one that is left out
    assert facts["num_images"] == 360
    assert len(facts["classes"]) == 10
    taken = sum(
        other["num_images"]
        for row in facts["classes"]
        for other in row["confused_with"]
    )
    assert taken == round(360 * (1 - facts["top1"] / 100))


def test_images_that_were_held_out_are_held_out_again(
    run: Path, tmp_path: Path
) -> None:
    (tmp_path / "model.safetensors").symlink_to(run / "model.safetensors")
    recipe = replace(t2t_vit(), holdout=100, seed=3)
    (tmp_path / "recipe.json").write_text(json.dumps(to_json(recipe)))
    assert judged(tmp_path).score.num_images == 100
    assert judged(tmp_path / "model.safetensors").score.num_images == 100
    assert judged(tmp_path, data="digits").score.num_images == 100
    assert judged(tmp_path, split="train", batch_size=1500).score.num_images == 1337


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Half of the held-out digits as files, but their classes in another order."""
    source = open_source("digits")
    for index in range(0, len(source), 2):
        run_folder = tmp_path / "digits" / source.classes[source.labels[index]]
        run_folder.mkdir(parents=True, exist_ok=True)
        pixels = torch.as_tensor(source.read(index))[0].numpy()
        Image.fromarray(pixels).save(run_folder / f"{index}.png")
    return tmp_path / "digits"


def test_other_data_is_taken_whole_and_its_damage_named(
    run: Path, folder: Path
) -> None:
    (folder / "3" / "broken.png").write_bytes(b"nothing")
    (folder / "3" / "photo.heic").touch()
    report = judged(run, data=folder, batch_size=64)
    assert (report.split, report.score.num_images) == ("all", 180)
    assert report.damaged == (str(folder / "3" / "broken.png"),)
    assert report.notes[0].endswith("--split val takes a tenth.")
    assert "photo.heic is skipped" in report.notes[1]
    tenth = judged(run, data=folder, split="val")
    assert tenth.score.num_images == 18


def test_data_that_was_split_anew_is_reported(run: Path, folder: Path) -> None:
    held = open_source(folder, "val").fingerprint()
    elsewhere = str(folder.parent / "model.safetensors")  # away from its recipe
    trained = replace(
        load_trained(run), path=elsewhere, data=str(folder), evaluated_on=held
    )
    assert find_data(trained, None, None).notes == ()
    (folder / "3" / "more.png").write_bytes(min((folder / "3").iterdir()).read_bytes())
    (note,) = find_data(trained, None, None).notes
    assert note.startswith(f"{folder} has changed since training, and so has its split")
    assert find_data(replace(trained, evaluated_on=None), None, None).notes == ()


def test_some_classes_count_as_some(run: Path, folder: Path) -> None:
    whole = judged(run, data=folder).score.confusion.to_dense()
    for name in "0123456789"[:7]:
        for file in (folder / name).iterdir():
            file.unlink()
        (folder / name).rmdir()
    report = judged(run, data=folder)
    assert report.notes[-1] == f"{folder} has 3 of the model's 10 classes."
    some = report.score.confusion.to_dense()
    assert torch.equal(some[7:], whole[7:])
    assert not some[:7].any()
    right = whole.diagonal() / whole.sum(1)
    assert [row.class_name for row in report.classes()] == sorted(
        "789", key=lambda name: right[int(name)]
    )


def hold_out_as_folder(folder: Path, seed: int) -> Path:
    """What a seed holds out of a folder, as a folder of its own."""
    source = open_source(str(folder), "val", seed=seed)
    for index in range(len(source)):
        path = Path(source.name(index))
        link = folder.with_name(f"held-{seed}") / path.parent.name / path.name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    return folder.with_name(f"held-{seed}")


def test_a_file_is_evaluated_on_what_its_seed_held_out(run: Path, folder: Path) -> None:
    model, loaded = load_with_report(run)
    extra = {**loaded.extra, "data": str(folder), "seed": 3}
    file = folder.parent / "model.safetensors"
    save(model, file, name=loaded.name, class_names=loaded.class_names, extra=extra)
    ours, others = (
        judged(run, data=hold_out_as_folder(folder, seed)).score.loss for seed in (3, 0)
    )
    assert judged(file).score.loss == pytest.approx(ours, rel=1e-5)
    assert ours != pytest.approx(others, rel=1e-3)


def test_half_precision_is_that_of_the_products(run: Path) -> None:
    half, full = judged(run, precision="bf16"), judged(run)
    assert (half.precision, full.precision) == ("bf16", "fp32")
    assert half.score.loss != full.score.loss
    assert half.score.loss == pytest.approx(full.score.loss, rel=0.05)


def test_the_first_batch_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 12.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    seen: list[tuple[int, int]] = []
    world = World(0, 1, torch.device("cpu"))
    watch = Throughput(world, 70, lambda done, total: seen.append((done, total)))
    for _ in range(3):
        watch.advance(30)
    assert watch.images_per_second() == 30
    assert seen == [(30, 70), (60, 70), (70, 70)]


@pytest.fixture
def report(run: Path) -> EvalReport:
    """Of 25 classes with five images each; all but the last one's are mistaken."""
    classes = imagenet_classes()[:25]
    wrong = [
        (number, (number + step) % 25) for number in range(24) for step in range(1, 6)
    ]
    pairs = torch.tensor([*wrong, *[(24, 24)] * 5])
    numbers = torch.arange(len(pairs))
    return replace(
        judged(run),
        trained=replace(load_trained(run), class_names=classes),
        score=Score.of(
            {
                "index": numbers,
                "label": pairs[:, 0],
                "predicted": pairs[:, 1],
                "top1": 100.0 * (pairs[:, 0] == pairs[:, 1]),
                "top5": torch.tensor([4.0]),
                "val_loss": torch.tensor([3.0]),
                "confidence": torch.full((len(pairs),), 0.5),
                "label_probability": torch.full((len(pairs),), 0.1),
            },
            25,
        ),
    )


def test_a_screen_is_given_the_worst_classes(report: EvalReport) -> None:
    def page(report: EvalReport) -> str:
        console = Console(width=300, color_system=None)
        with console.capture() as captured:
            console.print(report.render())
        return captured.get()

    reported = page(report)
    assert "125 images of 25 classes" in reported
    assert "The 20 worst of 25 classes; --json gives all." in reported
    (row,) = (line for line in reported.splitlines() if line.startswith("tench"))
    assert row.split() == [
        *["tench,", "Tinca", "tinca", "5", "0", "0.0", "%"],
        *["goldfish", "(1),", "great", "white", "shark", "(1),", "tiger", "shark"],
        "(1)",
    ]
    assert "top-5" in reported
    few = replace(report.trained, class_names=report.trained.class_names[:5])
    score = replace(report.score, predictions=torch.zeros(1, 3, dtype=torch.int64))
    reported = page(replace(report, trained=few, score=score))
    assert "top-5" not in reported
    assert "worst of" not in reported


def test_json_has_every_class_by_both_names(report: EvalReport) -> None:
    rows = report.as_json()["classes"]
    assert [row["top1"] for row in rows] == [0.0] * 24 + [100.0]
    assert (rows[0]["class"], rows[0]["name"]) == ("n01440764", "tench, Tinca tinca")
    assert [len(row["confused_with"]) for row in rows] == [5] * 24 + [0]


def test_mistakes_are_sentences(run: Path, folder: Path, tmp_path: Path) -> None:
    (folder / "3").rename(folder / "three")
    with pytest.raises(UserError, match="does not know: 'three'"):
        evaluate_model(run, data=folder)
    with pytest.raises(UserError, match="no split 'tset'"):
        evaluate_model(run, split="tset")
    with pytest.raises(UserError, match="precision='fp8' is not known"):
        evaluate_model(run, precision="fp8")
    with pytest.raises(UserError, match="ReaL labels need the original file names"):
        evaluate_model(run, real=True)
    save(create_model("t2t_vit_7_32", num_classes=3, **SMALL), tmp_path / "bare")
    with pytest.raises(UserError, match="does not name its training data"):
        evaluate_model(tmp_path / "bare")
    (tmp_path / "model.safetensors").symlink_to(run / "model.safetensors")
    recipe = replace(t2t_vit(), data="gone/photos")
    (tmp_path / "recipe.json").write_text(json.dumps(to_json(recipe)))
    with pytest.raises(UserError, match=r"no file or folder gone/photos.* give --data"):
        evaluate_model(tmp_path)


def test_reassessed_labels_of_imagenet(tmp_path: Path) -> None:
    model = create_model("t2t_vit_7_32", num_classes=1000, image_size=8, **SMALL)
    # Always 795: the second of the two right answers for validation image 2. The model
    # numbers ImageNet's classes from their end.
    nn.init.zeros_(model.head.weight)
    model.head.bias = nn.Parameter(torch.eye(1000)[999 - 795])
    names = imagenet_classes()[::-1]
    save(model, tmp_path, class_names=names, extra={"image_size": [8, 8]})
    # Image 1 has no reassessed label, 4 has another.
    for number, label in ((1, 65), (2, 970), (4, 809)):
        run_folder = tmp_path / "val" / imagenet_classes()[label]
        run_folder.mkdir(parents=True)
        pixels = np.zeros((8, 8, 3), np.uint8)
        Image.fromarray(pixels).save(run_folder / f"ILSVRC2012_val_{number:08}.JPEG")
    report = judged(tmp_path, data=tmp_path / "val", real=True, batch_size=2)
    assert report.score.top1 == 0
    assert report.real is not None
    assert (report.real.top1, report.real.num_images) == (50.0, 2)
    (other,) = (tmp_path / "val").glob("*/*_00000004.JPEG")
    other.rename(other.with_name("holiday.jpg"))
    with pytest.raises(UserError, match=r"holiday\.jpg is not one of ImageNet's"):
        evaluate_model(tmp_path, data=tmp_path / "val", real=True)
    for number in (809, 970):
        shutil.rmtree(tmp_path / "val" / imagenet_classes()[number])
    with pytest.raises(UserError, match="None of the images has a ReaL label"):
        evaluate_model(tmp_path, data=tmp_path / "val", real=True)
