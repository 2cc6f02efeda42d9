"""Weights for another task, size or number of channels."""

import logging
from dataclasses import replace

import pytest
import torch

from t2t.errors import UserError
from t2t.models.config import ModelConfig
from t2t.models.vit import VisionTransformer
from t2t.models.weights import load, load_weights, load_with_report, save

SMALL = ModelConfig(
    dim=32,
    depth=2,
    num_heads=4,
    mlp_ratio=2,
    token_dim=16,
    num_classes=5,
    image_size=(32, 48),
)


def logits(model, images):
    with torch.no_grad():
        return model.eval()(images)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def test_another_number_of_classes_replaces_the_head_and_says_so(tmp_path, caplog):
    model = VisionTransformer(SMALL)
    save(model, tmp_path)
    with caplog.at_level(logging.INFO, logger="t2t"):
        other, loaded = load_with_report(tmp_path, num_classes=9)
    assert loaded.notes == ("The head for 5 classes was replaced by a new one for 9.",)
    assert loaded.notes[0] in caplog.text
    assert other.config.num_classes == 9
    images = torch.randn(1, 3, 32, 48)
    with torch.no_grad():
        ours, theirs = model.eval()(images), other(images)
        features = model.forward_features(images), other.forward_features(images)
    assert ours.shape == (1, 5)
    assert theirs.shape == (1, 9)
    assert torch.equal(*features)


def test_a_head_is_left_out_and_put_back(tmp_path):
    save(VisionTransformer(SMALL), tmp_path / "whole")
    bare, loaded = load_with_report(tmp_path / "whole", num_classes=0)
    assert loaded.notes == ("The head for 5 classes was skipped.",)
    assert bare(torch.randn(1, 3, 32, 48)).shape == (1, 32)
    save(bare, tmp_path / "bare")
    other, loaded = load_with_report(tmp_path / "bare", num_classes=4)
    assert loaded.notes == ("It has no head: the model's is new.",)
    assert other(torch.randn(1, 3, 32, 48)).shape == (1, 4)


@pytest.mark.parametrize("positions", ["learned_1d", "learned_2d", "relative", "fixed"])
def test_another_image_size_interpolates_as_at_run_time(positions, tmp_path):
    model = VisionTransformer(replace(SMALL, positions=positions))
    save(model, tmp_path)
    other, loaded = load_with_report(tmp_path, image_size=(64, 64))
    assert "interpolated from 2×3 to 4×4 tokens" in loaded.notes[0]
    images = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(logits(other, images), logits(model, images))


def test_a_plane_of_sinusoids_needs_no_interpolation(tmp_path):
    model = VisionTransformer(replace(SMALL, positions="sinusoid_2d"))
    save(model, tmp_path)
    other, loaded = load_with_report(tmp_path, image_size=(64, 64))
    assert loaded.notes == ()
    images = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(logits(other, images), logits(model, images))


def test_another_image_size_interpolates_linformers_projections(tmp_path):
    model = VisionTransformer(replace(SMALL, mixer="linformer", positions="none"))
    save(model, tmp_path)
    other, loaded = load_with_report(tmp_path, image_size=64)
    assert len(loaded.notes) == 1
    images = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(logits(other, images), logits(model, images))


def test_a_sinusoid_is_interpolated_so_that_rows_stay_rows(tmp_path):
    model = VisionTransformer(SMALL)
    save(model, tmp_path / "first")
    other, loaded = load_with_report(tmp_path / "first", image_size=64)
    assert other.config.positions == "fixed"
    assert loaded.notes == ("Positions were interpolated from 2×3 to 4×4 tokens.",)
    table = other.encoder.positions.tables[0].table
    original = model.encoder.positions.tables[0].table
    assert torch.equal(table[0], original[0])
    # And a file that was saved so is itself again.
    save(other, tmp_path / "second")
    images = torch.randn(1, 3, 64, 64)
    assert torch.equal(logits(load(tmp_path / "second"), images), logits(other, images))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("image_size", [(32, 48), (64, 64)])
def test_a_model_of_another_precision_takes_weights(image_size, dtype, tmp_path):
    save(VisionTransformer(SMALL), tmp_path)
    model = VisionTransformer(replace(SMALL, image_size=image_size)).to(dtype)
    load_weights(model, tmp_path)
    tables = model.encoder.positions.tables
    assert {table.table.dtype for table in tables} == {dtype}
    expected = "sinusoid" if image_size == SMALL.image_size else "fixed"
    assert model.config.positions == expected
    # Its own weights, saved in that precision, hold no positions but those.
    save(model, tmp_path)
    assert load(tmp_path).config == model.config


@pytest.mark.parametrize("tokenizer", ["patch", "t2t_conv", "t2t_performer"])
def test_gray_images_are_seen_as_if_repeated(tokenizer, tmp_path):
    model = VisionTransformer(replace(SMALL, tokenizer=tokenizer))
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    save(model, tmp_path)
    gray = load(tmp_path, in_channels=1)
    images = torch.randn(2, 1, 32, 48)
    expected = logits(model, images.expand(-1, 3, -1, -1))
    torch.testing.assert_close(logits(gray, images), expected, rtol=1e-4, atol=1e-4)


def test_gray_weights_of_half_precision_are_summed_without_rounding(tmp_path):
    model = VisionTransformer(SMALL).half()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    save(model, tmp_path)
    gray = load(tmp_path, in_channels=1)
    images = torch.randn(2, 1, 32, 48)
    expected = logits(model.float(), images.expand(-1, 3, -1, -1))
    torch.testing.assert_close(logits(gray, images), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("tokenizer", "channels"), [("t2t", 1), ("patch", 4)])
def test_other_channels_are_refused(tokenizer, channels, tmp_path):
    save(VisionTransformer(replace(SMALL, tokenizer=tokenizer)), tmp_path)
    with pytest.raises(UserError, match="images of 3 channels and the model takes"):
        load(tmp_path, in_channels=channels)


def test_differences_are_reported_and_nothing_is_half_loaded(tmp_path):
    save(VisionTransformer(replace(SMALL, depth=3, mlp_ratio=3)), tmp_path)
    model = VisionTransformer(SMALL)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(UserError) as caught:
        load_weights(model, tmp_path)
    message = str(caught.value)
    assert "11 not the model's (encoder.blocks.2.mixer.proj.bias" in message
    assert "and 8 more" in message
    assert "mlp.expand.0.weight (96, 32) instead of (64, 32)" in message
    assert message.endswith(
        "It was made with depth=3, mlp_ratio=3: give the model the same."
    )
    after = model.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)
