"""A look at models: numbers, pictures and the report, for every kind of model."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import t2t
from t2t.analysis.attention_distance import attention_distance
from t2t.analysis.attention_maps import attention_maps
from t2t.analysis.attention_rollout import num_tokens_read, rollout
from t2t.deployment.weights_file import extra_of
from t2t.errors import UserError
from t2t.models.trained import load_trained
from t2t.models.weights import save
from t2t.serving.predictor import Predictor
from t2t.visualize import look as module
from t2t.visualize import report
from t2t.visualize.data import Look

Save = Callable[..., Path]

SECTIONS = (
    "Models",
    "The image through every split",
    "Feature maps and dead channels",
    "Attention by layer and head",
    "Attention rollout",
    "Mean attention distance",
    "Token norms",
    "Positions",
    "First-layer filters",
)


def found(weights: Any, images: Any, **options: Any) -> Look:
    return t2t.look(weights, images, device="cpu", **options)


def test_numbers_are_those_of_the_model(weights: Path, images: list[Path]) -> None:
    seen = found(weights, images)
    assert (seen.num_images, seen.skipped, len(seen.models)) == (2, (), 1)
    model = seen.models[0]
    assert [each.name for each in model.images] == [each.name for each in images]
    predictor = Predictor(weights, "cpu")
    distances = []
    for path, image in zip(images, model.images, strict=True):
        best = predictor.predict(path)[0].best
        assert image.prediction == f"{best.name} {100 * best.probability:.1f} %"
        pixels = predictor.model_input(path)
        assert torch.equal(image.pixels, pixels)
        layers = attention_maps(
            predictor.model, predictor.normalised(pixels), token_transformers=True
        )
        num_read = num_tokens_read(predictor.model)
        expected = rollout(layers, num_read=num_read)
        assert image.rollouts[-1][0] == "up to block 2"
        torch.testing.assert_close(image.rollouts[-1][1], expected)
        middle = layers[-1].weights[1, 4 * 12 + 6]
        torch.testing.assert_close(
            image.heads[-1].from_middle[1].flatten(), middle / middle.mean()
        )
        distances.append(attention_distance(layers[-1], (16, 24)))
    mean = torch.stack(distances).mean(0)
    torch.testing.assert_close(torch.tensor(model.distances[-1].heads), mean)
    names = [each.name for each in model.distances]
    assert names == ["token transformer 1", "token transformer 2", "block 1", "block 2"]
    assert model.num_channels == 8 + 8 + 3 * 12


def test_norms_in_the_numbers_are_in_order(weights: Path, images: list[Path]) -> None:
    (stated,) = found(weights, images).as_json()["models"]
    for norm in stated["token_norms"]:
        assert 0 < norm["percentile_5"] < norm["mean"] < norm["percentile_95"]


def test_the_probability_of_one_of_several_labels_is_its_own(
    save_small: Save, images: list[Path], tmp_path: Path
) -> None:
    trained = load_trained(save_small(tmp_path))
    file = tmp_path / "several.safetensors"
    extra = {**extra_of(trained), "multilabel": True}
    save(trained.model, file, class_names=trained.class_names, extra=extra)
    best = Predictor(file, "cpu").predict(images[0])[0].best
    (looked,) = found(file, images[0]).models
    expected = f"{best.name} {100 * best.probability:.1f} %"
    assert looked.images[0].prediction == expected


def test_the_report_is_complete_and_makes_no_requests(
    weights: Path, resnet: Path, timm_vit: Path, images: list[Path], tmp_path: Path
) -> None:
    seen = found(weights, images[:1], compare=[resnet, timm_vit])
    file = seen.write(tmp_path / "new" / "look")
    text = file.read_text()
    assert re.findall(r"<h2[^>]*>([^<]*)</h2>", text) == [*SECTIONS]
    assert "http" not in text
    addresses = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert {each[:5] for each in addresses if each[0] != "#"} == {"data:"}
    # Every reference within the page has its target, once.
    ids = re.findall(r'\bid="([^"]*)"', text)
    assert len(ids) == len({*ids})
    targets = re.findall(r'(?:href="|url\()#([^")]*)', text)
    assert {*targets} <= {*ids}
    assert "#010203" not in text
    assert "currentColor" in text
    assert "a &lt;b&gt; $x$ 猫.png" in text
    assert "<b>" not in text
    header, row = re.findall(r"<tr>(.*?)</tr>", text.split("</table>")[1], re.DOTALL)
    assert all(each.title in header for each in seen.models)
    for each in seen.models:
        assert each.images[0].prediction in row
    numbers = json.loads((file.parent / "look.json").read_text())
    assert [each["model"] for each in numbers["models"]] == [
        "t2t_vit_7_32",
        "resnet18_32",
        "test_vit",
    ]
    assert numbers["models"][1]["attention_distance"] == []
    written = {each.name for each in file.parent.glob("*.png")}
    assert written == {*numbers["pictures"]}
    for name in written:
        with Image.open(file.parent / name) as picture:
            assert min(picture.size) > 40
    assert not [*file.parent.glob(".*")]


def test_weights_to_compare_are_opened_before_the_work(
    weights: Path, images: list[Path]
) -> None:
    seen: list[int] = []
    with pytest.raises(UserError, match="nowhere"):
        found(weights, images, compare="nowhere.pt", progress=lambda *n: seen.append(n))
    assert seen == []


def test_the_report_of_several_models_is_as_wide_as_a_phone(
    weights: Path, images: list[Path], tmp_path: Path, browser: Any
) -> None:
    long = tmp_path / f"{'weights_with_a_long_name_' * 4}.safetensors"
    shutil.copy(weights, long)
    file = found(weights, images, compare=[long, weights]).write(tmp_path / "look")
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto(file.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    titles = [f"{each.name} (t2t_vit_7_32)" for each in (weights, long, weights)]
    expected = f"What {titles[0]}, {titles[1]} and {titles[2]} see"
    assert page.title() == page.inner_text("h1") == expected
    page.close()


def test_pictures_of_an_earlier_look_are_removed(
    weights: Path, resnet: Path, images: list[Path], tmp_path: Path
) -> None:
    found(weights, images[:1], compare=resnet).write(tmp_path)
    (tmp_path / "mine.png").write_bytes(b"mine")
    before = {each.name for each in tmp_path.iterdir()}
    found(weights, images[:1]).write(tmp_path)
    after = {each.name for each in tmp_path.iterdir()}
    assert after < before
    assert "mine.png" in after
    assert not any("resnet" in each for each in after)


@pytest.mark.parametrize("name", ["report.html", "look.json", "cat.jpg"])
def test_a_folder_of_other_files_is_left_alone(
    name: str, weights: Path, images: list[Path], tmp_path: Path
) -> None:
    (tmp_path / name).write_text("[]")
    with pytest.raises(UserError, match="holds other files"):
        found(weights, images[:1]).write(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "[]"


def test_an_interrupted_report_is_written_again(
    weights: Path, images: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = found(weights, images[:1])

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(report, "SECTIONS", (*report.SECTIONS[:1], stop))
        with pytest.raises(KeyboardInterrupt):
            seen.write(tmp_path)
    assert [*tmp_path.glob("*.png")]
    assert seen.write(tmp_path).exists()


@pytest.mark.parametrize(
    "options",
    [
        {"tokenizer": "t2t", "mixer": "attention_se", "dim": 16},
        {"tokenizer": "t2t_conv", "positions": "learned_2d", "mixer": "ghost"},
        {"tokenizer": "patch", "patch_size": 4, "positions": "relative"},
        {"positions": "none", "mixer": "linformer", "class_token": True},
        {"class_token": True, "pool": "class", "distilled": True},
        {"positions": "sinusoid", "positions_at": "every_layer", "num_classes": 0},
        {"wiring": "dense", "dense_stages": (1, 1), "growth": 4, "in_channels": 1},
        {"wiring": "pyramid", "pyramid_stages": (1, 1), "mixer": "axial"},
        {"tokenizer": "patch", "patch_size": 16, "size": (16, 16)},
    ],
    ids=str,
)
def test_every_choice_in_the_slots_has_its_report(
    options: dict[str, Any], save_small: Save, images: list[Path], tmp_path: Path
) -> None:
    seen = found(save_small(tmp_path, **options), images[:1])
    text = seen.write(tmp_path / "look").read_text()
    notes = " ".join(seen.models[0].notes)
    assert ("no attention map from token" in notes) == ("linformer" in str(options))
    assert ("no table of positions" in notes) == (options.get("positions") == "none")
    has_none = {"wiring", "linformer"} & {*options, *map(str, options.values())}
    assert ("no attention rollout" in notes) == (
        bool(has_none) and options.get("wiring") != "dense"
    )
    if options.get("num_classes") == 0:
        assert seen.models[0].images[0].prediction == ""
    if options.get("patch_size") == 16:
        assert "a single token" in text


def test_another_image_size(weights: Path, images: list[Path], tmp_path: Path) -> None:
    seen = found(weights, images[0], image_size=(20, 12))
    model = seen.models[0]
    assert model.image_size == (20, 12)
    assert model.images[0].pixels.shape == (1, 3, 20, 12)
    assert [each.grid for each in model.images[0].splits] == [
        (20, 12),
        (10, 6),
        (10, 6),
        (10, 6),
    ]
    assert seen.write(tmp_path).exists()


def test_images_of_any_form_and_more_than_are_drawn(
    weights: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "MAX_DRAWN", 2)
    pixels = np.random.default_rng(1).integers(0, 255, (4, 30, 30, 3), dtype=np.uint8)
    seen = found(weights, [*pixels[:3], Image.fromarray(pixels[3])])
    assert (seen.num_images, len(seen.models[0].images)) == (4, 2)
    # Numbers are over all four, as they are when all are drawn.
    monkeypatch.undo()
    whole = found(weights, [*pixels])
    assert seen.models[0].distances == whole.models[0].distances
    text = seen.write(tmp_path).read_text()
    assert "pictures show the first 2" in text


def test_unreadable_images_are_skipped(
    weights: Path, images: list[Path], tmp_path: Path
) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no image")
    seen = found(weights, [broken, images[0]])
    assert seen.num_images == 1
    assert len(seen.skipped) == 1
    assert "broken.jpg cannot be read" in seen.skipped[0]
    with pytest.raises(UserError, match="cannot be read"):
        found(weights, [broken])
    with pytest.raises(UserError, match="No images"):
        found(weights, [])


def test_damaged_weights_are_refused(
    save_small: Save, images: list[Path], tmp_path: Path
) -> None:
    path = save_small(tmp_path)
    model = t2t.load(path)
    torch.nn.init.constant_(model.encoder.blocks[0].norm1.weight, torch.nan)
    t2t.save(model, path, name="t2t_vit_7_32")
    with pytest.raises(UserError, match="NaN or infinity after block 1"):
        found(path, images)
