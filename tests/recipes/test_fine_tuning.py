"""Runs that start from weights: what they take from them, and what they keep."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import t2t
from t2t.errors import UserError
from t2t.models.create import create_model
from t2t.models.pretrained import read_pretrained
from t2t.models.vit import VisionTransformer
from t2t.models.weights import save
from t2t.recipes.choose import RecipeOptions, choose_recipe
from t2t.recipes.fine_tuning import num_epochs
from t2t.recipes.open_recipe import UNNAMED
from t2t.training.initial_state import new_state
from t2t.training.recipe import OptimizerConfig, Recipe
from t2t.training.runtime import Runtime

Tiny = Callable[..., Recipe]
MODEL = t2t.ModelConfig(
    dim=16,
    depth=2,
    num_heads=2,
    mlp_ratio=2,
    token_dim=8,
    splits=((3, 2, 1), (3, 1, 1), (3, 1, 1)),
    positions="learned_1d",
    class_token=False,
    pool="mean",
    image_size=(8, 8),
    num_classes=3,
)
PIXELS = {
    "image_size": [8, 8],
    "channels": 3,
    "mean": [0.1, 0.2, 0.3],
    "std": [0.5, 0.6, 0.7],
    "crop_fraction": 0.9,
}


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Weights of a small model that knows the classes a, b and x."""
    torch.manual_seed(1)
    model = VisionTransformer(MODEL)
    torch.nn.init.normal_(model.head.weight)
    file = tmp_path / "start.safetensors"
    return save(model, file, class_names=("a", "b", "x"), extra=PIXELS)


def chosen(weights: object, data: Path, *words: str, **options: object) -> Recipe:
    given = RecipeOptions(weights=str(weights), data=str(data), **options)
    return choose_recipe(UNNAMED, given, words)[0]


def test_all_that_weights_say_is_taken(weights: Path, images: Path) -> None:
    recipe = chosen(weights, images)
    with torch.device("meta"):
        model = create_model(recipe.model, num_classes=3, **recipe.model_args)
    assert isinstance(model, VisionTransformer)
    shared = {"image_size": (8, 8), "num_classes": 3, "drop_path": 0.0}
    assert replace(model.config, **shared) == MODEL
    assert recipe.image_size == (8, 8)
    assert recipe.augmentation.mean == (0.1, 0.2, 0.3)
    assert recipe.augmentation.std == (0.5, 0.6, 0.7)
    assert recipe.crop.evaluation_fraction == 0.9
    assert recipe.weights_checksum == read_pretrained(weights).checksum
    assert recipe.optimizer.layer_decay < 1
    assert (recipe.batch_size, recipe.epochs) == (8, 50)


def test_settings_come_after_the_weights(weights: Path, images: Path) -> None:
    recipe = chosen(weights, images, "optimizer.lr=0.1", epochs=3, image_size=(16, 8))
    assert (recipe.optimizer.lr, recipe.epochs) == (0.1, 3)
    assert recipe.schedule.warmup_epochs == pytest.approx(0.15)
    assert chosen(weights, images, "epochs=3", "image_size=16,8") == replace(
        recipe, optimizer=chosen(weights, images).optimizer
    )
    assert recipe.image_size == (16, 8)
    assert chosen(weights, images, "channels=1").augmentation.mean == (0.2,)


@pytest.mark.parametrize(
    ("num_images", "epochs"),
    [(10, 50), (10_000, 50), (50_000, 10), (1_281_167, 5)],
)
def test_fewer_images_are_shown_more_often(num_images: int, epochs: int) -> None:
    assert num_epochs(num_images) == epochs


def test_a_named_recipe_keeps_its_schedule(weights: Path, images: Path) -> None:
    options = RecipeOptions(weights=str(weights), data=str(images))
    recipe, notes = choose_recipe("transfer.cifar10", options)
    plain = t2t.find_recipe("transfer.cifar10")
    assert (recipe.optimizer, recipe.epochs) == (plain.optimizer, plain.epochs)
    assert recipe.image_size == (224, 224)
    assert recipe.model_args["dim"] == 16
    assert recipe.augmentation.mean == (0.1, 0.2, 0.3)
    assert any("images of 8×8 pixels, and this run trains at 224" in n for n in notes)


def test_a_timm_model_keeps_the_recipes_optimizer(tmp_path: Path, images: Path) -> None:
    model = create_model("test_resnet", num_classes=3)
    file = save(model, tmp_path / "timm.safetensors", name="test_resnet")
    options = RecipeOptions(weights=str(file), data=str(images))
    recipe, _ = choose_recipe("transfer.cifar10", options)
    assert (recipe.model, recipe.model_args) == ("test_resnet", {})
    assert recipe.optimizer == t2t.find_recipe("transfer.cifar10").optimizer
    assert recipe.drop_path == 0
    own = chosen(file, images)
    assert own.model == "test_resnet"
    assert own.image_size == (160, 160)  # timm's own
    muon, _ = choose_recipe("cifar10.sprint", options)
    assert muon.optimizer.name == "adamw"


def state_of(recipe: Recipe, cpu: Runtime, classes: str):
    from t2t.training.distributed import World
    from t2t.training.runtime import resolve_runtime

    world = World(0, 1, torch.device("cpu"))
    return new_state(
        recipe, resolve_runtime(cpu, world), world, len(classes), [*classes]
    )


def test_a_head_of_other_classes_starts_as_zeros(
    weights: Path, images: Path, cpu: Runtime
) -> None:
    recipe = chosen(weights, images)
    saved = load_file(weights)
    fresh = state_of(recipe, cpu, "abc").model.state_dict()
    assert not fresh["head.weight"].any()
    assert torch.equal(fresh["norm.weight"], saved["norm.weight"])
    kept = state_of(recipe, cpu, "bax").model.state_dict()
    assert torch.equal(kept["head.weight"], saved["head.weight"][[1, 0, 2]])
    fewer = state_of(recipe, cpu, "xa")
    assert torch.equal(fewer.model.head.weight, saved["head.weight"][[2, 0]])
    assert "its outputs reduced to the data's classes" in str(fewer.loaded)


def test_positions_follow_the_image_size(
    weights: Path, images: Path, cpu: Runtime
) -> None:
    recipe = chosen(weights, images, image_size=(8, 16))
    model = state_of(recipe, cpu, "abc").model
    before = load_file(weights)["encoder.positions.tables.0.table"]
    after = model.state_dict()["encoder.positions.tables.0.table"]
    assert (len(before), len(after)) == (16, 32)
    rows = after.reshape(4, 8, 16)
    # Interpolation along the width alone keeps the mean of each row, nearly.
    old = before.reshape(4, 4, 16)
    torch.testing.assert_close(rows.mean(1), old.mean(1), atol=0.01, rtol=0.1)


def test_changed_weights_are_refused(weights: Path, images: Path, cpu: Runtime) -> None:
    recipe = chosen(weights, images)
    other = VisionTransformer(MODEL)
    save(other, weights, class_names=("a", "b", "x"), extra=PIXELS)
    with pytest.raises(UserError, match="not those of the recipe any more"):
        state_of(recipe, cpu, "abc")
    state_of(replace(recipe, weights_checksum=None), cpu, "abc")


@pytest.mark.parametrize("model", ["t2t", "test_resnet", "muon"])
def test_a_frozen_body_stays_bit_equal(
    model: str, weights: Path, images: Path, tmp_path: Path
) -> None:
    if model == "test_resnet":
        network = create_model(model, num_classes=3)
        weights = save(network, weights, name=model, extra=PIXELS)
    before = load_file(weights)
    settings = {"batch_size": 16, "token_dropping.keep": 1.0}
    recipe = "cifar10.sprint" if model == "muon" else "digits"
    size = {"image_size": 8, "epochs": 1} if model == "muon" else {"epochs": 2}
    result = t2t.train(
        recipe,
        data=images,
        from_=weights,
        freeze=True,
        folder=tmp_path / "run",
        set=settings,
        device="cpu",
        compile="off",
        workers=1,
        quiet=True,
        **size,
    )
    assert result.finished
    after = load_file(result.folder / "model.safetensors")
    heads = {name for name in after if name.startswith(("head.", "fc."))}
    assert len(heads) == 2
    if model == "test_resnet":
        assert any(name.endswith("running_mean") for name in after)
    for name in after.keys() - heads:
        assert torch.equal(after[name], before[name]), name
    for name in heads:
        assert after[name].any()
    log = (result.folder / "log.txt").read_text()
    assert "; only the head's " in log


def test_a_frozen_body_computes_no_gradient(
    weights: Path, images: Path, cpu: Runtime
) -> None:
    recipe = chosen(weights, images, "drop_path=0.3", freeze=True)
    assert recipe.name == "fine_tuned_head"
    state = state_of(recipe, cpu, "abc")
    state.task.train()
    assert state.model.head.training
    assert not state.model.encoder.training
    views = {"images": torch.rand(2, 3, 8, 8), "targets": torch.eye(3)[:2]}
    state.task(views)["loss"].backward()
    with_gradient = {n for n, p in state.model.named_parameters() if p.grad is not None}
    assert with_gradient == {"head.weight", "head.bias"}
    assert state.num_trained == 16 * 3 + 3
    whole = state_of(replace(recipe, freeze=False), cpu, "abc")
    assert state.num_parameters == whole.num_parameters == whole.num_trained


def test_freezing_needs_weights_and_a_head(
    tiny: Tiny, weights: Path, cpu: Runtime, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"only the head .* add --from WEIGHTS"):
        t2t.train(tiny(), freeze=True, folder=tmp_path / "run", runtime=cpu)
    assert not (tmp_path / "run").exists()
    recipe = replace(tiny(), weights=str(weights), freeze=True)
    with pytest.raises(UserError, match="which t2t_vit_7_32 with task=classify does"):
        state_of(recipe, cpu, "")
    muon = replace(recipe, optimizer=OptimizerConfig(name="muon"))
    with pytest.raises(UserError, match=r"--set optimizer\.name=adamw"):
        state_of(replace(muon, weights=None), cpu, "abc")


def test_an_interrupted_run_resumes_bit_for_bit(
    weights: Path,
    images: Path,
    tmp_path: Path,
    interrupt_after: Callable[[int | None], None],
) -> None:
    def train(folder: str) -> t2t.training.result.Result:
        return t2t.train(
            data=images,
            from_=weights,
            epochs=2,
            folder=tmp_path / folder,
            device="cpu",
            compile="off",
            workers=1,
            quiet=True,
        )

    whole = train("whole")
    interrupt_after(3)
    assert not train("parts").finished
    interrupt_after(None)
    parts = train("parts")
    assert parts.finished
    first = load_file(whole.folder / "model.safetensors")
    second = load_file(parts.folder / "model.safetensors")
    assert all(torch.equal(first[name], second[name]) for name in first)
    recipe = json.loads((parts.folder / "recipe.json").read_text())
    assert recipe["weights"] == str(weights)
    assert recipe["weights_checksum"] == read_pretrained(weights).checksum


def test_a_resumed_run_keeps_the_checksum(
    tiny: Tiny,
    weights: Path,
    cpu: Runtime,
    tmp_path: Path,
    interrupt_after: Callable[[int | None], None],
) -> None:
    recipe = replace(tiny(), model_args=read_pretrained(weights).model_args)
    recipe = replace(recipe, weights=str(weights))
    folder = tmp_path / "run"
    start = t2t.training.train.train
    interrupt_after(2)
    assert not start(recipe, folder=folder, runtime=cpu, quiet=True).finished
    interrupt_after(None)
    before = json.loads((folder / "recipe.json").read_text())
    weights.unlink()
    assert start(recipe, folder=folder, runtime=cpu, quiet=True).finished
    after = json.loads((folder / "recipe.json").read_text())
    assert after == before
    assert after["weights_checksum"]


def test_weights_of_another_model_are_named(weights: Path, images: Path) -> None:
    with pytest.raises(UserError, match="leave out --set model=resnet18"):
        chosen(weights, images, "model=resnet18")
    options = RecipeOptions(weights="one")
    with pytest.raises(UserError, match="--from one and --set weights=two contradict"):
        choose_recipe(UNNAMED, options, ["weights=two"])
