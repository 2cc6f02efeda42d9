"""What the figures draw: units, frames, places of panels, and the order of filters."""

from typing import Any

import numpy as np
import torch
from matplotlib.patches import Rectangle
from torch import Tensor

from t2t.analysis.feature_maps import ChannelStatistics
from t2t.visualize.data import ChannelMaps, HeadDistances, ImageLook, ModelLook
from t2t.visualize.figures import DEAD, OUTSIZED, feature_rows, largest
from t2t.visualize.layout import ColourScale
from t2t.visualize.montage import GAP, Row, draw_montage, paint, panel_size
from t2t.visualize.printing import distance_in_words


def an_image(values: Tensor, channels: tuple[int, ...]) -> ImageLook:
    maps = ChannelMaps(name="block 1", channels=channels, values=values)
    nothing: Any = ()
    return ImageLook(
        name="a.png",
        pixels=torch.zeros(1, 3, 4, 4, dtype=torch.uint8),
        prediction="",
        splits=nothing,
        features=(maps,),
        heads=nothing,
        rollouts=nothing,
    )


def statistics(std: list[float], rms: list[float]) -> ChannelStatistics:
    return ChannelStatistics(
        name="block 1", std=torch.tensor(std), rms=torch.tensor(rms)
    )


def test_feature_maps_are_differences_in_stds_of_the_median_channel() -> None:
    values = torch.tensor([[[5.0, 7.0]], [[100.0, 100.0]], [[-3.0, 1.0]]])
    found = statistics([1.0, 0.0, 0.5, 2.0, 2.0], [1.0, 50.0, 1.0, 1.0, 1.0])
    (row,) = feature_rows(an_image(values, (0, 1, 4)), [found])
    expected = torch.tensor([[[-1.0, 1.0]], [[0.0, 0.0]], [[-2.0, 2.0]]])
    assert torch.equal(row.panels, expected)
    assert row.frames == {1: DEAD}  # outsized, too, but it says nothing


def test_an_outsized_channel_is_framed() -> None:
    found = statistics([1.0, 1.0, 1.0], [1.0, 1.0, 11.0])
    (row,) = feature_rows(an_image(torch.ones(2, 1, 1), (0, 2)), [found])
    assert row.frames == {1: OUTSIZED}


def test_where_most_channels_are_dead_the_unit_is_the_most_varying_one() -> None:
    values = torch.tensor([[[0.0, 8.0]], [[3.0, 3.0]]])
    found = statistics([4.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0])
    (row,) = feature_rows(an_image(values, (0, 1)), [found])
    expected = torch.tensor([[[-1.0, 1.0]], [[0.0, 0.0]]])
    assert torch.equal(row.panels, expected)
    assert found.relative_std.tolist() == [1, 0, 0, 0]


def test_panels_and_their_frames_are_where_the_numbers_say() -> None:
    panels = torch.zeros(3, 1, 1)
    panels[2] = 1
    rows = [
        Row(name="a", panels=torch.zeros(3, 1, 1)),
        Row(name="b", panels=panels, frames={2: DEAD}),
    ]
    scale = ColourScale(0, 1, "gray", "grey")
    picture = paint(rows, scale, 1.0)
    height, width = panel_size(rows, 1.0)
    white = (picture == 255).all(-1)
    expected = np.zeros_like(white)
    top, left = height + GAP, 2 * (width + GAP)
    expected[top : top + height, left : left + width] = True
    assert np.array_equal(white, expected)
    axes = draw_montage(rows, scale, 1.0, "panel").axes[0]
    (frame,) = (each for each in axes.patches if isinstance(each, Rectangle))
    x, y = frame.get_xy()
    assert (x, y) == (left - 1.5, top - 1.5)
    assert (frame.get_width(), frame.get_height()) == (width + 2, height + 2)


def test_the_filters_of_the_largest_norm_come_first() -> None:
    filters = torch.arange(1.0, 101.0).view(100, 1, 1, 1)
    assert largest(filters).flatten().tolist() == [*range(100, 36, -1)]


def test_the_distance_goes_from_the_first_block_to_the_last() -> None:
    def layer(name: str, *heads: float, is_block: bool = True) -> HeadDistances:
        return HeadDistances(name=name, is_block=is_block, heads=heads, uniform=9.0)

    nothing: Any = ()
    first = layer("token transformer 1", 7.0, is_block=False)
    model = ModelLook(
        weights="builtin",
        model="t2t_vit_7_32",
        image_size=(4, 4),
        num_parameters=1,
        images=nothing,
        channels=nothing,
        norms=nothing,
        distances=(first, layer("block 1", 1.0, 2.0), layer("block 2", 3.0, 5.0)),
        filters=None,
        positions=None,
        notes=(),
    )
    assert distance_in_words(model) == "1.5 to 4.0 px"
