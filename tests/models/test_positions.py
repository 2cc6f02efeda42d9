"""Positions of every kind, at every place, for any grid."""

import copy
import itertools
from pathlib import Path

import pytest
import torch

from t2t.errors import UserError
from t2t.models.create import create_model
from t2t.models.encoder_positions import POSITIONS_AT
from t2t.models.layers import SequenceProjection
from t2t.models.positions import (
    POSITIONS,
    AxisPositions,
    FixedPositions,
    LearnedPositions,
    PlaneSinusoidPositions,
    RelativePositions,
    SinusoidPositions,
    sinusoid,
)
from t2t.models.token_grid import resize_offsets, resize_tokens
from t2t.models.weights import load, save

SMALL = {"dim": 16, "depth": 3, "num_heads": 2, "num_classes": 4, "patch_size": 8}


def build(**model_args: object) -> torch.nn.Module:
    torch.manual_seed(0)
    return create_model("vit_base_16", image_size=32, **SMALL | model_args).eval()


@pytest.mark.parametrize(
    ("kind", "place"), list(itertools.product(POSITIONS, POSITIONS_AT))
)
def test_every_kind_at_every_place(kind: str, place: str) -> None:
    model = build(positions=kind, positions_at=place)
    torch.manual_seed(1)
    images = torch.randn(2, 3, 32, 32)
    logits = model(images)
    assert logits.isfinite().all()
    assert model(torch.randn(1, 3, 40, 24)).shape == (1, 4)
    if kind != "none":
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
        shuffled = images.unflatten(2, (4, 8))[:, :, [2, 0, 3, 1]].flatten(2, 3)
        moved = (model(shuffled) - model(images)).abs().max()
        assert moved > 1e-3


def test_without_positions_tokens_are_a_set() -> None:
    model = build(positions="none")
    images = torch.randn(2, 3, 32, 32)
    shuffled = images.unflatten(2, (4, 8))[:, :, [2, 0, 3, 1]].flatten(2, 3)
    torch.testing.assert_close(model(images), model(shuffled))


def test_places_have_their_number_of_tables() -> None:
    for place, number in {"stem": 1, "shared": 1, "every_layer": 3}.items():
        model = build(positions="learned_1d", positions_at=place)
        assert len(model.encoder.positions.tables) == number


def test_sinusoid_of_four_positions() -> None:
    table = sinusoid(4, 4)
    angle = torch.arange(4.0)
    torch.testing.assert_close(table[:, 0], angle.sin())
    torch.testing.assert_close(table[:, 1], angle.cos())
    torch.testing.assert_close(table[:, 2], (angle / 100).sin())
    torch.testing.assert_close(table[:, 3], (angle / 100).cos())


def test_sinusoids_differ_between_rows_and_columns_on_every_grid() -> None:
    positions = PlaneSinusoidPositions(8, 1, (4, 16), 2)
    table = positions.add_to(torch.zeros(1, 65, 8), (4, 16))[0]
    assert not table[0].any()
    image = table[1:].unflatten(0, (4, 16))
    assert torch.equal(image[:, :1, :4].expand(-1, 16, -1), image[..., :4])
    assert torch.equal(image[:1, :, 4:].expand(4, -1, -1), image[..., 4:])
    torch.testing.assert_close(image[0, :, 4], torch.arange(16.0).sin())
    torch.testing.assert_close(image[:, 0, 1], (torch.arange(4) * 4 + 1.5).cos())
    # Three times as many rows: each middle one stands where one stood before.
    larger = positions.add_to(torch.zeros(1, 12 * 16 + 1, 8), (12, 16))[0]
    again = larger[1:].unflatten(0, (12, 16))
    torch.testing.assert_close(again[1::3], image)


def test_resizing_keeps_a_plane_and_the_prefix() -> None:
    rows, columns = torch.meshgrid(
        torch.linspace(0.125, 0.875, 4), torch.linspace(0.1, 0.9, 5), indexing="ij"
    )
    table = torch.stack([rows.flatten(), columns.flatten()], dim=1)
    table = torch.cat([torch.tensor([[7.0, 9.0]]), table])
    larger = resize_tokens(table, 1, (4, 5), (8, 10))
    torch.testing.assert_close(larger[0], table[0])
    inner = larger[1:].unflatten(0, (8, 10))[2:6, 3:7]
    expected = torch.linspace(0.0625, 0.9375, 8)[2:6]
    torch.testing.assert_close(inner[:, 0, 0], expected, atol=0.03, rtol=0)


@pytest.mark.parametrize("cls", [LearnedPositions, FixedPositions, AxisPositions])
def test_the_own_grid_is_not_interpolated(cls: type) -> None:
    positions = cls(8, 1, (3, 4), 2)
    tokens = torch.zeros(1, 13, 8)
    added = positions.add_to(tokens, (3, 4))[0]
    if cls is not AxisPositions:
        torch.testing.assert_close(added, positions.table, rtol=0, atol=0)
    else:
        torch.testing.assert_close(added[1 + 4 * 2 + 3, :4], positions.rows[2])
        torch.testing.assert_close(added[1 + 4 * 2 + 3, 4:], positions.columns[3])


def test_relative_bias_depends_on_the_offset_alone() -> None:
    positions = RelativePositions(8, 2, (3, 4), 5)
    torch.nn.init.normal_(positions.offsets)
    torch.nn.init.normal_(positions.prefix)
    bias = positions.attention_bias((3, 4))[0]
    assert bias.shape == (5, 14, 14)

    def at(row: int, column: int) -> int:
        return 2 + row * 4 + column

    one = bias[:, at(0, 0), at(1, 2)]
    # The middle and how far the key lies behind the query: saved weights rely on it.
    torch.testing.assert_close(one, positions.offsets[:, 2 + 1, 3 + 2])
    torch.testing.assert_close(one, bias[:, at(1, 1), at(2, 3)])
    assert not torch.allclose(one, bias[:, at(1, 2), at(0, 0)])
    torch.testing.assert_close(bias[:, 0, 5], positions.prefix[:, 0])
    torch.testing.assert_close(bias[:, 5, 1], positions.prefix[:, 1])
    torch.testing.assert_close(bias[:, 0, 1], positions.prefix[:, 2])


@pytest.mark.parametrize("grid", [(1, 5), (5, 1), (1, 1)])
def test_a_side_of_one_token_leaves_offset_zero(grid: tuple[int, int]) -> None:
    offset = torch.arange(-2.0, 3.0)
    both = torch.stack([offset[:, None].expand(5, 5), offset[None].expand(5, 5)])
    rows, columns = resize_offsets(both, grid)
    assert rows.shape == columns.shape == (2 * grid[0] - 1, 2 * grid[1] - 1)
    for along, length in ((rows[:, 0], grid[0]), (columns[0], grid[1])):
        ends = [0.0] if length == 1 else [-2.0, 2.0]
        torch.testing.assert_close(along[[0, -1]].unique(), torch.tensor(ends))


def test_shared_positions_refuse_layers_of_several_widths() -> None:
    with pytest.raises(UserError, match="every_layer"):
        create_model(
            "t2t_vit_dense",
            positions="learned_1d",
            positions_at="shared",
            image_size=64,
        )


def test_misspelled_choices_name_what_is_allowed() -> None:
    with pytest.raises(UserError, match="sinusoid"):
        build(positions="sinus")
    with pytest.raises(UserError, match="every_layer"):
        build(positions_at="each_layer")


@pytest.mark.parametrize("size", [(48, 48), (24, 40)])
@pytest.mark.parametrize("place", ["stem", "every_layer"])
@pytest.mark.parametrize("kind", POSITIONS)
def test_run_at_another_size_or_loaded_for_it_is_the_same(
    kind: str, place: str, size: tuple[int, int], tmp_path: Path
) -> None:
    model = build(positions=kind, positions_at=place)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    save(model, tmp_path)
    images = torch.randn(2, 3, *size)
    loaded = load(tmp_path, image_size=size)
    set_later = copy.deepcopy(model)
    set_later.set_input_size(size)
    with torch.no_grad():
        expected = model(images)
        torch.testing.assert_close(loaded(images), expected)
        torch.testing.assert_close(set_later(images), expected)
    assert set_later.config == loaded.config
    state = loaded.state_dict()
    assert set_later.state_dict().keys() == state.keys()
    torch.testing.assert_close(dict(set_later.state_dict()), dict(state))


def test_linformers_projections_are_set_for_another_size() -> None:
    model = build(positions="none", mixer="linformer", linformer_dim=4)
    other = copy.deepcopy(model)
    other.set_input_size((24, 40))
    projection = other.encoder.blocks[0].mixer.shorten
    assert isinstance(projection, SequenceProjection)
    assert projection.keys.shape == (4, 1 + 3 * 5)
    images = torch.randn(1, 3, 24, 40)
    torch.testing.assert_close(other(images), model(images))


@pytest.mark.parametrize("cls", [SinusoidPositions, LearnedPositions, AxisPositions])
def test_half_precision_interpolates_as_weights_are_when_loaded(cls: type) -> None:
    positions = cls(8, 1, (3, 4), 2)
    tokens = torch.zeros(1, 1 + 6 * 5, 8)
    exact = positions.add_to(tokens, (6, 5))
    half = positions.bfloat16()
    added = half.add_to(tokens.bfloat16(), (6, 5))
    torch.testing.assert_close(added.float(), exact, atol=2**-8, rtol=2**-7)
