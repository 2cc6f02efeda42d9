"""What a file says of its model, and what is assumed where it says nothing."""

from pathlib import Path

import pytest
import timm.data
import torch
from safetensors.torch import save_file

from t2t.errors import UserError
from t2t.models.checkpoint_io.description import Description
from t2t.models.class_names import aliases, imagenet_classes, readable_names
from t2t.models.create import create_model
from t2t.models.trained import PUBLISHED_MEAN, PUBLISHED_STD, load_trained
from t2t.models.weights import save

SMALL = {"dim": 16, "depth": 1, "num_heads": 1, "token_dim": 8, "image_size": 16}


def test_a_run_says_all(tmp_path: Path) -> None:
    model = create_model("t2t_vit_7_32", num_classes=2, in_channels=1, **SMALL)
    extra = {
        "image_size": [16, 24],
        "channels": 1,
        "mean": [0.3],
        "std": [0.4],
        "crop_fraction": 1.0,
        "data": "photos",
        "seed": 7,
    }
    save(model, tmp_path, name="mine", class_names=["no", "yes"], extra=extra)
    trained = load_trained(tmp_path)
    assert trained.notes == ()
    assert trained.class_names == trained.readable_names == ("no", "yes")
    assert (trained.image_size, trained.channels) == ((16, 24), 1)
    assert (trained.mean, trained.std, trained.crop_fraction) == ((0.3,), (0.4,), 1.0)
    assert (trained.data, trained.name) == ("photos", "mine")
    assert trained.seed == 7  # else images it was trained on would judge it
    with pytest.raises(UserError, match="1 class_names were given, but the model has"):
        save(model, tmp_path, class_names=["one name too few"])


def test_names_that_are_too_few_are_left_out(tmp_path: Path) -> None:
    model = create_model("t2t_vit_7_32", num_classes=2, **SMALL)
    about = Description(config=model.config, class_names=("one name too few",))
    file = tmp_path / "a.safetensors"
    save_file(model.state_dict(), file, {"t2t": about.to_json()})
    trained = load_trained(file)
    assert trained.class_names == ("class 0", "class 1")
    assert "names 1 classes and has 2; they are numbered" in trained.notes[0]


def test_published_weights_are_taken_for_imagenets(tmp_path: Path) -> None:
    model = create_model("t2t_vit_7")
    path = tmp_path / "71.7_T2T_ViT_7.pth.tar"
    torch.save({"state_dict_ema": model.state_dict()}, path)
    trained = load_trained(path)
    assert trained.class_names[0] == "n01440764"
    assert trained.readable_names[0] == "tench, Tinca tinca"
    assert trained.image_size == (224, 224)
    assert trained.crop_fraction == 0.9
    assert trained.mean == (0.485, 0.456, 0.406)
    assert trained.data is None
    names, pixels = trained.notes
    assert "does not name its 1000 classes; ImageNet's are assumed" in names
    assert "224×224 pixels, center crop 0.9" in pixels


def test_a_network_of_timms_is_shown_images_as_timm_does(tmp_path: Path) -> None:
    model = create_model("vit_tiny_patch16_224", num_classes=3, image_size=32)
    save(model, tmp_path / "a.safetensors", name="vit_tiny_patch16_224")
    trained = load_trained(tmp_path / "a.safetensors")
    assert trained.mean == trained.std == (0.5, 0.5, 0.5)
    assert trained.image_size == (32, 32)
    assert trained.class_names == ("class 0", "class 1", "class 2")
    assert "they are numbered" in trained.notes[0]


@pytest.mark.parametrize("channels", [1, 4])
def test_other_channels_get_the_mean_over_colours(
    tmp_path: Path, channels: int
) -> None:
    model = create_model("t2t_vit_7_32", num_classes=2, in_channels=channels, **SMALL)
    save(model, tmp_path)
    trained = load_trained(tmp_path)
    assert trained.mean == pytest.approx((0.449,) * channels)
    assert len(trained.std) == trained.channels == channels


def test_a_model_without_head_is_refused(tmp_path: Path) -> None:
    save(create_model("t2t_vit_7_32", num_classes=0, **SMALL), tmp_path)
    with pytest.raises(UserError, match="has no head"):
        load_trained(tmp_path)


def test_wordnets_numbers_have_words() -> None:
    assert len(imagenet_classes()) == 1000
    assert readable_names(["n02129604", "cat", "n00000000"]) == (
        "tiger, Panthera tigris",
        "cat",
        "n00000000",
    )
    assert aliases("n02129604") == {"n02129604", "tiger, Panthera tigris", "tiger"}
    assert aliases("cat, dog") == {"cat, dog"}


def test_what_timm_ships_is_read_as_timm_reads_it() -> None:
    classes = timm.data.ImageNetInfo()
    assert imagenet_classes() == tuple(classes.label_names())
    assert readable_names(imagenet_classes()) == tuple(classes.label_descriptions())
    assert PUBLISHED_MEAN == timm.data.IMAGENET_DEFAULT_MEAN
    assert PUBLISHED_STD == timm.data.IMAGENET_DEFAULT_STD
