"""The t-SNE picture: points that keep classes apart, and a legend."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from t2t.analysis import tsne_figure
from t2t.analysis.tsne_figure import draw_tsne, tsne_points


def clusters(num: int, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    labels = np.arange(num) % num_classes
    centres = random.normal(size=(num_classes, 8))
    return (5 * centres[labels] + random.normal(size=(num, 8))).astype(
        np.float32
    ), labels


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """What is drawn, without writing it, from points that cost nothing."""
    drawn: list[Figure] = []
    monkeypatch.setattr(
        tsne_figure, "save_figure", lambda figure, path, dpi: drawn.append(figure)
    )
    monkeypatch.setattr(tsne_figure, "tsne_points", lambda values, seed: values[:, :2])
    return drawn


def test_classes_stay_together(tmp_path: Path) -> None:
    features, labels = clusters(90, 3)
    points = tsne_points(features * np.linspace(1, 9, 90)[:, None])
    centres = np.stack([points[labels == number].mean(0) for number in range(3)])
    distances = np.linalg.norm(points[:, None] - centres, axis=2)
    assert (distances.argmin(1) == labels).mean() > 0.9
    path = draw_tsne(features, labels, ["ant", "b$e$e", "cat"], tmp_path / "t.png")
    pixels = np.asarray(Image.open(path).convert("RGB")).astype(int)
    assert (np.ptp(pixels, axis=2) > 50).sum() > 1000  # points have colours


@pytest.mark.parametrize("num", [1, 2, 3, 5])
def test_a_few_images_are_enough(num: int) -> None:
    points = tsne_points(clusters(num, 1)[0])
    assert points.shape == (num, 2)
    assert np.isfinite(points).all()


def test_copies_of_one_image_are_one_point() -> None:
    assert np.ptp(tsne_points(np.ones((5, 8), np.float32))) == 0


def test_the_legend_names_the_classes_that_have_images(figures: list[Figure]) -> None:
    features, labels = clusters(30, 3)
    names = ["ant", "bee", "cat", "dog"]
    draw_tsne(features, labels, names, "t.png", "mine")
    legend = figures[0].axes[0].get_legend()
    assert legend is not None
    words = [text.get_text() for text in legend.get_texts()]
    assert words == ["ant (10)", "bee (10)", "cat (10)"]
    assert figures[0].get_suptitle() == "mine\nt-SNE of 30 images"


def test_of_many_classes_the_largest_are_named(figures: list[Figure]) -> None:
    features, labels = clusters(100, 25)
    labels[labels == 24] = 3
    draw_tsne(features, labels, [f"c{number}" for number in range(25)], "t.png")
    legend = figures[0].axes[0].get_legend()
    assert legend is not None
    words = [text.get_text() for text in legend.get_texts()]
    assert len(words) == 19
    assert words[0] == "6 other classes"
    assert "c3 (8)" in words
    colours = {tuple(each.get_facecolor()[0][:3]) for each in legend.legend_handles}
    assert len(colours) == 19


def test_without_labels_there_is_no_legend(
    figures: list[Figure], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tsne_figure, "MAX_POINTS", 12)
    features, labels = clusters(30, 1)
    draw_tsne(features, labels, (), "t.png")
    assert figures[0].axes[0].get_legend() is None
    assert figures[0].get_suptitle() == "t-SNE of 12 images"
