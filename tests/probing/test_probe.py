"""Probes: each method on the same features, and what a report holds."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

import t2t
from t2t.config import to_json
from t2t.errors import UserError
from t2t.models.create import create_model
from t2t.models.trained import load_trained
from t2t.models.weights import save
from t2t.probing.finetune import finetune_recipe, starting_model
from t2t.probing.frozen import FrozenFeatures
from t2t.probing.images import find_labelled
from t2t.probing.report import ProbeReport
from t2t.recipes.digits import t2t_vit
from t2t.training.initial_state import build_model
from t2t.training.result import Result

SMALL: dict[str, Any] = {"dim": 16, "depth": 1, "num_heads": 1, "token_dim": 8}


def probed(weights: Path, data: Path | None, *methods: str, **options: Any) -> Any:
    return t2t.probe(weights, data=data, methods=methods, device="cpu", **options)


@pytest.fixture(scope="module")
def report(weights: Path, images: Path) -> ProbeReport:
    found = probed(
        weights, images, "few-shot", "knn", "linear", draws=4, shots=(5, 1), k=7
    )
    assert isinstance(found, ProbeReport)
    return found


def test_methods_score_the_same_features(
    report: ProbeReport, weights: Path, images: Path
) -> None:
    train, val = (
        t2t.features(weights, images, split=split, device="cpu")
        for split in ("train", "val")
    )
    mean, std = train.values.mean(0), train.values.std(0, correction=0)
    penalty = report.result("linear").details["penalty"]
    linear = LogisticRegression(C=1 / (penalty * 48), tol=1e-6, max_iter=10_000)
    linear.fit(((train.values - mean) / std).numpy(), train.labels.numpy())
    guesses = linear.predict(((val.values - mean) / std).numpy())
    right = 100 * (guesses == val.labels.numpy()).mean()
    assert report.result("linear").top1 == pytest.approx(right)
    assert right > 60
    knn = KNeighborsClassifier(
        7, metric="cosine", weights=lambda distance: np.exp((1 - distance) / 0.07)
    )
    knn.fit(train.values.numpy(), train.labels.numpy())
    right = 100 * knn.score(val.values.numpy(), val.labels.numpy())
    assert report.result("knn").top1 == pytest.approx(right)


def test_few_shot_is_the_mean_of_its_draws(report: ProbeReport) -> None:
    methods = [each.label for each in report.results]
    assert methods == [
        "linear",
        "kNN",
        "few-shot, 1 per class",
        "few-shot, 5 per class",
    ]
    _, _, one, five = report.results
    for result, num in ((one, 3), (five, 15)):
        draws = result.details["top1_of_draws"]
        assert len(draws) == 4
        assert result.details["seeds"] == [0, 1, 2, 3]
        assert result.top1 == pytest.approx(np.mean(draws), abs=1e-3)
        assert result.std == pytest.approx(np.std(draws, ddof=1), abs=1e-3)
        assert result.num_images == num
    assert len({*one.details["top1_of_draws"]}) > 1


def test_the_report_is_json_and_repeats_itself(
    report: ProbeReport, weights: Path, images: Path
) -> None:
    facts = json.loads(json.dumps(report.as_json()))
    assert facts["num_train_images"] == 48
    assert (facts["num_images"], facts["split"], facts["seed"]) == (13, "val", 0)
    assert facts["command"].startswith("t2t")
    assert [each["method"] for each in facts["results"]] == [
        *("linear", "knn", "few-shot", "few-shot")
    ]
    again = probed(
        weights, images, "few-shot", "knn", "linear", draws=4, shots=(5, 1), k=7
    )
    assert [each.top1 for each in again.results] == [
        each.top1 for each in report.results
    ]


def test_linear_and_knn_are_chosen_without_the_evaluated_images(
    weights: Path, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from t2t.probing import frozen

    seen: dict[str, tuple[int, int]] = {}

    def noted(name: str, choose: Callable[..., Any]) -> Callable[..., Any]:
        def choose_and_note(train: Any, held_out: Any, *rest: Any) -> Any:
            seen[name] = (len(train[0]), len(held_out[0]))
            return choose(train, held_out, *rest)

        return choose_and_note

    for name in ("choose_penalty", "choose_k"):
        monkeypatch.setattr(frozen, name, noted(name, getattr(frozen, name)))
    report = probed(weights, images, "linear", "knn")
    assert seen == {"choose_penalty": (38, 10), "choose_k": (38, 10)}
    assert report.result("knn").details["k_is_chosen"]
    few = probed(weights, images, "linear", "knn", train_images=6)
    assert few.num_train == 6
    assert not few.result("linear").details["penalty_is_chosen"]
    assert few.result("knn").details == {"k": 6, "k_is_chosen": False}


def test_settings_are_chosen_on_images_of_every_class() -> None:
    labels = torch.arange(4).repeat_interleave(20)  # as class folders are listed
    rows = torch.arange(80.0)[:, None]
    found = FrozenFeatures(
        train=rows, train_labels=labels, val=rows, val_labels=labels, num_classes=4
    )
    (kept, kept_labels), (held, held_labels) = found.holdout(0)  # type: ignore[misc]
    assert held_labels.bincount().tolist() == [4] * 4
    assert kept_labels.bincount().tolist() == [16] * 4
    assert sorted(torch.cat([kept, held])[:, 0].tolist()) == rows[:, 0].tolist()
    few = replace(found, train=rows[:4], train_labels=torch.arange(4))
    assert few.holdout(0) is None


def test_so_few_images_as_asked_are_evaluated(weights: Path, images: Path) -> None:
    report = probed(weights, images, "knn", train_images=12, val_images=6, k=3)
    assert (report.num_train, report.num_evaluated) == (12, 6)


def test_fine_tuning_trains_and_is_not_repeated(
    weights: Path, images: Path, tmp_path: Path
) -> None:
    options = {"epochs": 2, "examples": 20, "folder": tmp_path}
    first = probed(weights, images, "finetune", **options)
    result = first.result("finetune")
    run = Path(result.details["folder"])
    assert (run.parent, result.num_images) == (tmp_path, 20)
    summary = json.loads((run / "result.json").read_text())
    assert result.top1 == summary["top1"]
    before = (run / "model.safetensors").stat().st_mtime_ns
    again = probed(weights, images, "finetune", **options)
    assert again.result("finetune").top1 == result.top1
    assert (run / "model.safetensors").stat().st_mtime_ns == before
    probed(weights, images, "finetune", **{**options, "epochs": 1})
    assert len([*tmp_path.iterdir()]) == 2


def test_other_weights_and_images_are_fine_tuned_elsewhere(
    weights: Path,
    headless: Path,
    images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from t2t.probing import finetune

    folders: list[Path] = []

    def train(recipe: Any, *, folder: Path, **_: Any) -> Result:
        folders.append(folder)
        return Result(folder, True, {"top1": 50.0})

    monkeypatch.setattr(finetune, "train", train)
    options: dict[str, Any] = {"epochs": 1, "folder": tmp_path, "examples": 20}
    probed(weights, images, "finetune", **options)
    probed(headless, images, "finetune", **options)
    probed(weights, images, "finetune", **options, train_images=30)
    probed(weights, images, "finetune", **options, seed=1)
    assert len({*folders}) == 4
    probed(weights, images, "finetune", **options)
    assert folders[0] == folders[-1]


def test_an_interrupted_fine_tuning_ends_the_command(
    weights: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from t2t.probing import finetune

    unfinished = Result(tmp_path, False, {})
    monkeypatch.setattr(finetune, "train", lambda *_, **__: unfinished)
    with pytest.raises(KeyboardInterrupt):
        probed(weights, images, "finetune", folder=tmp_path)


@pytest.mark.parametrize("name", ["t2t_vit_7_32", ""])
def test_the_recipe_builds_the_model_of_the_weights(name: str, tmp_path: Path) -> None:
    model = create_model("t2t_vit_7_32", num_classes=3, image_size=8, **SMALL)
    trained = load_trained(save(model, tmp_path / "m.safetensors", name=name))
    recipe = finetune_recipe(trained, "photos", 1000, 40, seed=2)
    built = build_model(recipe, num_classes=3)
    shapes = {key: tensor.shape for key, tensor in built.state_dict().items()}
    assert shapes == {key: tensor.shape for key, tensor in model.state_dict().items()}
    assert recipe.weights == trained.path
    assert (recipe.seed, recipe.image_size, recipe.channels) == (2, (8, 8), 3)
    assert recipe.augmentation.mean == trained.mean


def test_timm_models_have_no_options() -> None:
    trained = replace(load_trained("builtin"), name="resnet18")
    trained = replace(trained, model=create_model("resnet18", num_classes=3))
    assert starting_model(trained) == ("resnet18", {})


@pytest.mark.parametrize(
    ("methods", "options", "message"),
    [
        (("nearest",), {}, "method='nearest' is not known"),
        ((), {}, "at least one method"),
        (("knn",), {"k": 0}, "k=0 is too small"),
        (("knn",), {"k": 49}, "k=49 is more than the 48 training images"),
        (("few-shot",), {"shots": (1, 17)}, "17 shots need .* 'a' of .* has 16"),
        (("knn",), {"split": "train"}, "cannot be evaluated on the split 'train'"),
        (("knn",), {"precision": "fp8"}, "precision='fp8' is not known"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    weights: Path,
    images: Path,
    methods: tuple[str, ...],
    options: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(UserError, match=message):
        probed(weights, images, *methods, **options)


def test_images_without_labels_are_an_error(weights: Path, tmp_path: Path) -> None:
    for number in range(3):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{number}.png")
    with pytest.raises(UserError):
        probed(weights, tmp_path, "knn")
    (tmp_path / "only").mkdir()
    for path in [*tmp_path.glob("*.png")]:
        path.rename(tmp_path / "only" / path.name)
    with pytest.raises(UserError, match="images of one class only"):
        probed(weights, tmp_path, "knn")


def test_a_run_is_probed_on_its_own_split(tmp_path: Path) -> None:
    model = create_model(
        "t2t_vit_7_32", num_classes=10, in_channels=1, image_size=8, **SMALL
    )
    extra = {"image_size": [8, 8], "channels": 1, "mean": [0.3], "std": [0.4]}
    extra |= {"crop_fraction": 1.0, "data": "digits"}
    save(model, tmp_path, name="t2t_vit_7_32", extra=extra)
    recipe = replace(t2t_vit(), holdout=100, seed=3)
    (tmp_path / "recipe.json").write_text(json.dumps(to_json(recipe)))
    trained = load_trained(tmp_path)
    train, val = find_labelled(trained, None, None)
    assert (len(train.source), len(val.source)) == (1337, 100)
    _, other = find_labelled(replace(trained, path="x", data="digits"), None, None)
    assert len(other.source) == 360


def test_training_and_evaluation_never_overlap(
    weights: Path, images: Path, tmp_path: Path
) -> None:
    # Data with a train split alone is split; its whole train split is not used.
    (tmp_path / "train").symlink_to(images / "train")
    train, val = find_labelled(load_trained(weights), tmp_path, None)
    names = [
        {each.source.name(index) for index in range(len(each.source))}
        for each in (train, val)
    ]
    assert not names[0] & names[1]
    assert len(names[0] | names[1]) == 48
    report = probed(weights, tmp_path, "knn", k=1)
    assert (report.num_train, report.num_evaluated) == (43, 5)


def test_classes_are_matched_by_name(
    weights: Path, images: Path, tmp_path: Path
) -> None:
    (tmp_path / "train").symlink_to(images / "train")
    (tmp_path / "val").symlink_to(images / "val")
    (tmp_path / "test").mkdir()
    for name in "bc":
        (tmp_path / "test" / name).symlink_to(images / "val" / name)
    _, test = find_labelled(load_trained(weights), tmp_path, "test")
    assert test.source.classes == ("a", "b", "c")
    assert {*test.source.labels.tolist()} == {1, 2}


def test_a_timm_model_is_probed_and_fine_tuned(images: Path, tmp_path: Path) -> None:
    model = create_model("test_vit", num_classes=4)
    path = save(model, tmp_path / "timm.safetensors", name="test_vit")
    report = probed(
        path, images, "knn", "finetune", epochs=1, examples=12, folder=tmp_path
    )
    assert report.width == model.num_features
    assert report.result("finetune").num_images == 12
    assert any("does not state its preprocessing" in note for note in report.notes)
