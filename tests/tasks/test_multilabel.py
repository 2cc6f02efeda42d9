"""Several labels per image: loss, scores, and a run from its data to predictions."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.metrics import average_precision_score, f1_score
from torch import Tensor, nn

import t2t
from t2t.commands.eval import eval_multilabel
from t2t.data.augment.config import Augmentation
from t2t.data.augment.mix import soft_targets
from t2t.data.label_config import LabelConfig
from t2t.data.packing.pack import pack
from t2t.data.rng import CounterRng
from t2t.data.sources import open_splits
from t2t.data.sources.label_sets import as_label_sets
from t2t.errors import UserError
from t2t.models.trained import load_trained
from t2t.recipes.labels import with_labels_found
from t2t.serving.predictor import Predictor
from t2t.tasks.base import NoArgs, TaskContext
from t2t.tasks.multilabel import Multilabel, multi_hot
from t2t.tasks.multilabel_scores import MultilabelScores
from t2t.training.evaluation.evaluate_model import evaluate_model
from t2t.training.evaluation.evaluate_multilabel import evaluate_multilabel
from t2t.training.forecast.random_batch import random_batch
from t2t.training.loaders import open_data
from t2t.training.recipe import Recipe
from t2t.training.runtime import Runtime
from t2t.training.train import train

Tiny = Callable[..., Recipe]
SETS = as_label_sets([(0, 2), (1,), (), (0, 1, 2)])
HOT = [[1.0, 0.0, 1.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]


def task(model: nn.Module | None = None, num_classes: int = 3) -> Multilabel:
    context = TaskContext(num_classes=num_classes, label_sets=SETS)
    return Multilabel(model or nn.Identity(), context, NoArgs())


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """48 images with any of three colours, and a table of them."""
    folder = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(0)
    rows = ["file,tags"]
    for number in range(48):
        pixels = random.integers(0, 90, (8, 8, 3))
        has = random.random(3) < 0.5
        pixels[..., has] += 150
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
        tags = [name for name, there in zip("rgb", has, strict=True) if there]
        rows.append(f"{number}.png,{';'.join(tags) or 'dark'}")
    (folder / "labels.csv").write_text("\n".join(rows))
    return folder


@pytest.fixture
def recipe(tiny: Tiny, photos: Path) -> Recipe:
    """A tiny run on them."""
    return tiny(data=str(photos), task="multilabel")


# Targets and loss


def test_labels_become_multi_hot_targets() -> None:
    labels = torch.tensor([3, 0, 1, 2])
    hot = task().multi_hot(labels)
    assert hot.tolist() == [HOT[3], HOT[0], HOT[1], HOT[2]]


def test_smoothing_and_mixing_apply_to_every_class() -> None:
    pixels = torch.zeros(4, 3, 8, 8, dtype=torch.uint8)
    rng = CounterRng.of(seed=0, step=0, indices=torch.arange(4))
    plain = Augmentation(smoothing=0.3)
    views = task().views((pixels,), torch.arange(4), rng, plain)
    hot = torch.tensor(HOT)
    assert torch.allclose(views["targets"], hot * 0.7 + 0.1)
    # Of a single label it is what classification has.
    single = task().views((pixels,), torch.tensor([1, 1, 1, 1]), rng, plain)
    expected = soft_targets(torch.tensor([1] * 4), 3, 0.3)
    assert torch.allclose(single["targets"], expected)
    mixed = task().views((pixels,), torch.arange(4), rng, Augmentation(mixup=1.0))
    targets = mixed["targets"]
    kept = targets[1, 1]  # its partner has none
    assert 0 < kept < 1
    assert torch.allclose(targets, hot * kept + hot.flip(0) * (1 - kept))


def test_the_loss_is_binary_cross_entropy() -> None:
    logits = torch.randn(4, 3)
    hot = torch.tensor(HOT)
    loss = task()({"images": logits, "targets": hot})["loss"]
    by_hand = -(hot * F.logsigmoid(logits) + (1 - hot) * F.logsigmoid(-logits)).mean()
    assert torch.allclose(loss, by_hand)
    scored = task().score(nn.Identity(), logits, torch.arange(4))
    assert torch.allclose(scored["val_loss"].mean(), by_hand)
    assert torch.allclose(scored["probabilities"], logits.sigmoid())


# Scores


def random_case(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    likely = torch.rand(40, 7, generator=generator)
    if seed % 2:
        likely = (likely * 4).round() / 4  # ties
    return likely, torch.rand(40, 7, generator=generator) < 0.3


@pytest.mark.parametrize("seed", range(6))
def test_scores_are_those_of_scikit_learn(seed: int) -> None:
    likely, true = random_case(seed)
    scores = MultilabelScores.of(likely, true)
    expected = average_precision_score(true.numpy(), likely.numpy(), average=None)
    assert np.allclose(scores.average_precision, 100 * expected)
    assert math.isclose(scores.mean_average_precision, 100 * expected.mean())
    predicted = likely.numpy() >= 0.5
    micro = f1_score(true.numpy(), predicted, average="micro")
    assert math.isclose(scores.overall_f1, 100 * micro)
    each = f1_score(true.numpy(), predicted, average=None, zero_division=0)
    assert np.allclose(np.nan_to_num(scores.f1), 100 * each)


def test_classes_without_images_do_not_count() -> None:
    likely, true = random_case(0)
    true[:, 2] = False
    scores = MultilabelScores.of(likely, true)
    assert math.isnan(scores.average_precision[2])
    rest = np.delete(scores.average_precision, 2)
    assert math.isclose(scores.mean_average_precision, rest.mean())


def test_what_is_not_finite_is_not_a_score() -> None:
    likely, true = random_case(0)
    likely[3, 1] = math.nan
    assert math.isnan(MultilabelScores.of(likely, true).mean_average_precision)


def test_random_batches_fit_a_few_sets_of_many_classes(tiny: Tiny) -> None:
    few = Multilabel(
        nn.Identity(),
        TaskContext(num_classes=9, label_sets=as_label_sets([(0, 1), (3, 8)])),
        NoArgs(),
    )
    batch = random_batch(tiny(), 64, few)
    assert few.multi_hot(batch.labels).sum(1).tolist() == [2.0] * 64


def test_no_class_is_an_index_of_the_table() -> None:
    assert multi_hot(torch.tensor([[-1, -1]]), torch.tensor([0]), 2).tolist() == [
        [0, 0]
    ]


# A run


def test_a_run_is_scored_and_predicts_from_its_file(
    recipe: Recipe, photos: Path, tmp_path: Path, cpu: Runtime
) -> None:
    result = train(replace(recipe, epochs=12), folder=tmp_path / "run", runtime=cpu)
    assert result.summary["metric"] == "map"
    assert result.summary["map"] > 60
    trained = load_trained(tmp_path / "run")
    assert trained.is_multilabel
    assert trained.class_names == ("b", "dark", "g", "r")

    report = evaluate_multilabel(tmp_path / "run", device="cpu")
    assert report is not None
    assert math.isclose(report.scores.mean_average_precision, result.summary["map"])
    shown = json.loads(json.dumps(report.as_json(), allow_nan=False))
    assert shown["map"] == round(result.summary["map"], 4)
    assert {row["class"] for row in shown["classes"]} == {"b", "dark", "g", "r"}

    # The file alone: what it needs is in it.
    file = (tmp_path / "run/model.safetensors").rename(tmp_path / "x.safetensors")
    alone = evaluate_multilabel(file, device="cpu")
    assert alone is not None
    assert alone.as_json()["map"] == shown["map"]
    assert not any("has changed" in note for note in alone.notes)

    source = open_data(recipe).val
    first = source.name(0)
    predictor = Predictor(file, "cpu")
    (all_classes,) = predictor.predict(first, top=9)
    given = {each.class_name: each.probability for each in all_classes.classes}
    expected = alone.values["probabilities"][0]
    assert torch.allclose(
        torch.tensor([given[name] for name in trained.class_names]), expected, atol=1e-5
    )
    (likely,) = Predictor(file, "cpu", threshold=0.3).predict(first)
    assert {each.class_name for each in likely.classes} == {
        name for name, probability in given.items() if probability >= 0.3
    }
    (none,) = Predictor(file, "cpu", threshold=1.0).predict(first)
    assert none.classes == ()
    assert none.best == all_classes.best


def test_a_run_resumes_bit_for_bit(
    tiny: Tiny,
    photos: Path,
    tmp_path: Path,
    cpu: Runtime,
    interrupt_after: Callable[[int | None], None],
) -> None:
    recipe = tiny(random=True, data=str(photos), task="multilabel")
    whole = train(recipe, folder=tmp_path / "whole", runtime=cpu)
    interrupt_after(5)
    stopped = train(recipe, folder=tmp_path / "part", runtime=cpu)
    assert not stopped.finished
    interrupt_after(None)
    resumed = train(recipe, folder=tmp_path / "part", runtime=cpu)
    same = ("map", "f1", "val_loss", "map_raw", "val_loss_raw")
    assert {name: whole.summary[name] for name in same if name in whole.summary} == {
        name: resumed.summary[name] for name in same if name in resumed.summary
    }
    one, other = (
        (tmp_path / name / "model.safetensors").read_bytes()
        for name in ("whole", "part")
    )
    assert one == other


def test_the_task_is_chosen_and_the_recipe_repeats_the_run(
    tiny: Tiny, photos: Path, tmp_path: Path
) -> None:
    options = {"device": "cpu", "compile": "off", "workers": 1, "epochs": 1}
    result = t2t.train(
        tiny(data=str(photos)),
        folder=tmp_path / "run",
        set=["evaluate_every=1"],
        **options,  # type: ignore[arg-type]
    )
    written = json.loads((tmp_path / "run/recipe.json").read_text())
    assert written["task"] == "multilabel"
    assert written["labels"] == {
        "files": [f"{photos}/labels.csv"],
        "path_column": "file",
        "label_columns": ["tags"],
        "split_column": None,
        "separator": ";",
        "several": True,
        "pattern": None,
    }
    (photos / "metadata.csv").write_text("file,tags\n1.png,r;g\n2.png,b\n")
    again = t2t.train(
        str(tmp_path / "run/recipe.json"),
        folder=tmp_path / "again",
        **options,  # type: ignore[arg-type]
    )
    (photos / "metadata.csv").unlink()
    assert again.summary["map"] == result.summary["map"]


def test_class_folders_will_do(tiny: Tiny, tmp_path: Path, cpu: Runtime) -> None:
    result = train(
        tiny(task="multilabel", epochs=1), folder=tmp_path / "run", runtime=cpu
    )
    assert result.summary["metric"] == "map"


def test_a_pack_has_the_same_labels(tiny: Tiny, photos: Path, tmp_path: Path) -> None:
    before = open_splits(photos)
    pack(photos, tmp_path / "packed", shard_size=16)
    after = open_splits(tmp_path / "packed")
    for old, new in ((before.train, after.train), (before.val, after.val)):
        assert new.is_multilabel
        assert new.classes == old.classes
        count = sorted(old.classes_of(n) for n in range(len(old)))
        assert sorted(new.classes_of(n) for n in range(len(new))) == count
    assert after.train.label_sets is after.val.label_sets
    chosen, notes = with_labels_found(tiny(data=str(tmp_path / "packed")))
    assert chosen.task == "multilabel"
    assert "several labels" in notes[0]
    assert len(open_data(chosen).val) == len(before.val)
    assert not after.description.endswith("4 classes")


# Mistakes


def test_other_tasks_and_models_refuse_several_labels(
    tiny: Tiny, photos: Path, tmp_path: Path, cpu: Runtime
) -> None:
    with pytest.raises(UserError, match="several labels, and task=classify learns one"):
        open_data(tiny(data=str(photos)))
    train(tiny(epochs=1), folder=tmp_path / "run", runtime=cpu)
    with pytest.raises(UserError, match=r"several labels, and .* predicts one"):
        evaluate_model(tmp_path / "run", data=photos, device="cpu")
    with pytest.raises(UserError, match="predicts one class per image"):
        evaluate_multilabel(tmp_path / "run", device="cpu")
    train(
        tiny(data=str(photos), task="multilabel", epochs=1),
        folder=tmp_path / "several",
        runtime=cpu,
    )
    with pytest.raises(UserError, match="predicts several labels per image"):
        evaluate_model(tmp_path / "several", device="cpu")
    table = tmp_path / "other.csv"
    table.write_text("file,tags\n1.png,r;x\n2.png,g\n3.png,r\n")
    config = LabelConfig(files=(str(table),))
    with pytest.raises(UserError, match="classes that the model does not know: 'x'"):
        evaluate_multilabel(
            tmp_path / "several", data=photos, label_config=config, device="cpu"
        )


def test_options_for_one_label_are_refused_in_a_sentence() -> None:
    trained: Any = SimpleNamespace(path="runs/tags")
    refused = {"--picture": False, "--report": True}
    with pytest.raises(UserError) as caught:
        eval_multilabel(trained, {}, refused, json=False)
    assert str(caught.value) == (
        "--report is for models that predict one label per image, and runs/tags "
        "predicts several: leave it out. t2t eval then prints the average precision "
        "of every class."
    )
