"""Recipes: what is published, and that every one of them can start."""

import inspect
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from t2t.config import from_json, to_json
from t2t.data.sampler import steps_per_epoch
from t2t.errors import UserError
from t2t.models.zoo import ZOO
from t2t.recipes import about, all_recipes, find_recipe
from t2t.recipes.default import default_recipe, fitting_batch
from t2t.training.initial_state import build_model
from t2t.training.optim import build_optimizers
from t2t.training.recipe import Recipe

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", all_recipes())
def test_every_recipe_is_whole(name: str) -> None:
    function = all_recipes()[name]
    recipe = function()
    assert recipe.name == name
    assert about(function).endswith(".")
    assert to_json(from_json(Recipe, to_json(recipe))) == to_json(recipe)
    with torch.device("meta"):
        model = build_model(recipe, num_classes=10)
        # What the zoo lists is computed where its costs are counted.
        if recipe.model_args or recipe.image_size != ZOO[recipe.model].image_size:
            logits = model(torch.zeros(2, recipe.channels, *recipe.image_size))
            assert logits.shape == (2, 10)


def test_every_recipe_says_what_it_is() -> None:
    of_imagenet = {n: r for n, r in all_recipes().items() if n.startswith("imagenet.")}
    told = [about(function) for function in of_imagenet.values()]
    assert len({*told}) == len(told)
    assert about(all_recipes()["imagenet.t2t_vit_14"]) == (
        "T2T-ViT, 14 layers: 21.5 M parameters."
    )


@pytest.mark.parametrize("name", all_recipes())
def test_every_docstring_has_command_and_result(name: str) -> None:
    text = inspect.getdoc(all_recipes()[name]) or ""
    assert f"\nt2t train {name}" in text
    records = re.findall(r"top-1 [\d.]+ %.*\(records/([\w-]+)\)\.$", text)
    assert records or text.endswith("measured yet.")
    for record in records:
        page = (ROOT / "records" / record / "README.md").read_text()
        (top1,) = re.findall(r"top-1 ([\d.]+) %", text)
        assert top1 in page or f"{top1} %" in (ROOT / "records/README.md").read_text()


def test_a_recipe_survives_json() -> None:
    recipe = find_recipe("imagenet.t2t_vit_14")
    assert from_json(Recipe, to_json(recipe)) == recipe


@pytest.mark.parametrize(
    ("model", "lr", "decay"),
    [
        ("t2t_vit_7", 1e-3, 0.03),
        ("t2t_vit_12", 1e-3, 0.03),
        ("t2t_vit_14", 5e-4, 0.05),
        ("t2t_vit_t_14", 5e-4, 0.05),
        ("t2t_vit_24", 5e-4, 0.065),
        ("t2t_vit_t_19", 5e-4, 0.065),
    ],
)
def test_the_published_recipe(model: str, lr: float, decay: float) -> None:
    recipe = find_recipe(f"imagenet.{model}")
    optimizer, schedule = recipe.optimizer, recipe.schedule
    assert (recipe.epochs, recipe.batch_size, recipe.drop_path) == (310, 512, 0.1)
    assert (optimizer.name, optimizer.lr, optimizer.weight_decay) == (
        "adamw",
        lr,
        decay,
    )
    assert optimizer.scaled(optimizer.lr, 512) == lr
    assert schedule.floor * lr == pytest.approx(1e-5)
    assert schedule.start * lr == pytest.approx(1e-6)
    assert (schedule.warmup_epochs, schedule.floor_epochs) == (10, 10)
    augmentation = recipe.augmentation
    assert augmentation.rand_augment == "rand-m9-mstd0.5-inc1"
    assert (augmentation.mixup, augmentation.cutmix) == (0.8, 1.0)
    assert (augmentation.smoothing, augmentation.erase) == (0.1, 0.25)
    assert recipe.ema.decay == 0.99996
    assert recipe.crop.evaluation_fraction == 0.9


@pytest.mark.parametrize("data", ["cifar10", "cifar100"])
def test_cifar_is_transferred_as_published_for_t2t_vit(data: str) -> None:
    recipe = find_recipe(f"transfer.{data}")
    optimizer = recipe.optimizer
    assert (recipe.data, recipe.image_size) == (data, (224, 224))
    assert (recipe.epochs, recipe.batch_size) == (60, 64)
    assert (optimizer.name, optimizer.momentum) == ("sgd", 0.9)
    assert optimizer.scaled(optimizer.lr, 64) == 0.05
    assert optimizer.body_lr == 5e-4


@pytest.mark.parametrize(
    ("data", "num_images", "num_steps"),
    [("flowers102", 2040, 500), ("pets", 3680, 500), ("imagenet", 1_281_167, 20_000)],
)
def test_larger_images_are_fine_tuned_in_vits_steps(
    data: str, num_images: int, num_steps: int
) -> None:
    name = "imagenet_384" if data == "imagenet" else data
    recipe = find_recipe(f"transfer.{name}")
    assert (recipe.data, recipe.image_size) == (data, (384, 384))
    assert (recipe.optimizer.name, recipe.batch_size) == ("sgd", 512)
    assert recipe.optimizer.weight_decay == 0
    steps = steps_per_epoch(num_images, recipe.batch_size) * recipe.epochs
    assert steps == pytest.approx(num_steps, rel=0.01)


def test_a_misspelled_recipe_says_what_was_meant() -> None:
    with pytest.raises(UserError, match=r"cifar10\.t2t_vit_7"):
        find_recipe("cifar10.t2t_vit7")
    assert find_recipe("digits").name == "digits.t2t_vit"


@pytest.mark.parametrize(("side", "model"), [(30, "t2t_vit_7_32"), (200, "t2t_vit_7")])
def test_own_images_get_a_model_of_their_size(
    tmp_path: Path, side: int, model: str
) -> None:
    rng = np.random.default_rng(0)
    for label in ("cat", "dog"):
        folder = tmp_path / label
        folder.mkdir()
        for number in range(12):
            pixels = rng.integers(0, 255, (side, side + 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
    (tmp_path / "cat" / "broken.png").write_bytes(b"\x89PNG nothing")
    recipe = default_recipe(str(tmp_path))
    assert recipe.model == model
    assert recipe.batch_size == 8


@pytest.mark.parametrize("side", [30, 200])
@pytest.mark.parametrize(
    "model",
    ["resnet18", "vgg11", "deit_tiny", "t2t_vit_dense", "t2t_vit_7_distilled"],
)
def test_own_images_train_any_model(tmp_path: Path, side: int, model: str) -> None:
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        for number in range(12):
            image = Image.new("RGB", (side, side), (number, 0, 0))
            image.save(tmp_path / label / f"{number}.png")
    recipe = default_recipe(str(tmp_path), model)
    assert recipe.model == model
    with torch.device("meta"):
        network = build_model(recipe, 2)
        assert network(torch.zeros(2, 3, *recipe.image_size)).shape == (2, 2)
        assert build_optimizers(network, recipe)


def test_own_images_train_for_one_epoch(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        for number in range(2):
            Image.new("RGB", (32, 32)).save(tmp_path / name / f"{number}.png")
    for epochs in (1, 3, 40, 100):
        recipe = default_recipe(str(tmp_path), epochs=epochs)
        assert recipe.epochs == epochs
        assert recipe.schedule.warmup_epochs == min(5, epochs / 10)
        assert recipe.evaluate_every == max(epochs // 20, 1)


def test_few_images_still_make_steps() -> None:
    assert fitting_batch(6) == 6
    assert fitting_batch(20) == 8
    assert fitting_batch(1000) == 32
    assert fitting_batch(50_000) == 2048
