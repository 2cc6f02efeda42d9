"""Smaller images first: their sizes, their phases, and resuming within them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from t2t.data.crops import shrink
from t2t.errors import UserError
from t2t.training import step as step_module
from t2t.training.recipe import ProgressiveResizing, Recipe, TokenDropping
from t2t.training.runtime import Runtime
from t2t.training.step import Stepper
from t2t.training.train import train

Tiny = Callable[..., Recipe]
RESIZING = ProgressiveResizing(initial_scale=0.5, until=0.5)


def test_sides_are_multiples_of_eight_and_values_are_averages() -> None:
    pixels = torch.randint(0, 256, (2, 3, 128, 96), dtype=torch.uint8)
    smaller = shrink(pixels, 0.7)
    assert smaller.shape == (2, 3, 88, 64)
    assert smaller.dtype == torch.uint8
    half = shrink(pixels, 0.5).float()
    smooth = F.interpolate(pixels.float(), (64, 48), mode="bilinear", antialias=True)
    assert (half - smooth).abs().max() <= 0.5
    assert shrink(pixels[..., :4, :4], 0.5).shape == (2, 3, 4, 4)


def test_sizes_grow_by_equal_steps(tiny: Tiny) -> None:
    resizing = ProgressiveResizing(initial_scale=0.4, until=0.6, num_sizes=3)
    progress = (0.0, 0.19, 0.2, 0.39, 0.4, 0.59, 0.6, 1.0)
    scales = [resizing.scale_at(each) for each in progress]
    assert scales == [0.4, 0.4, 0.6, 0.6, 0.8, 0.8, 1.0, 1.0]


def test_phases_have_their_sizes_and_costs(tiny: Tiny) -> None:
    recipe = tiny(
        progressive_resizing=RESIZING,
        token_dropping=TokenDropping(keep=0.5, until=0.8),
    )
    shares = [
        (phase.keep, phase.scale, share) for phase, share in recipe.phases().items()
    ]
    assert shares == [
        (0.5, 0.5, pytest.approx(0.25)),
        (0.5, 0.75, pytest.approx(0.25)),
        (0.5, 1.0, pytest.approx(0.3)),
        (1.0, 1.0, pytest.approx(0.2)),
    ]
    half = 0.625
    expected = half * (0.25 * 0.25 + 0.25 * 0.5625 + 0.3) + 0.2
    assert recipe.cost() == pytest.approx(expected)


def test_the_model_sees_smaller_images_first(
    tiny: Tiny, cpu: Runtime, tmp_path: Path
) -> None:
    recipe = tiny(image_size=(32, 24), progressive_resizing=RESIZING)
    seen: list[tuple[int, ...]] = []
    plain = step_module.Stepper.find_gradient

    def noting(one: Stepper, requests: Tensor, *views: Tensor) -> Tensor:
        seen.append(tuple(views[0].shape[-2:]))
        return plain(one, requests, *views)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_module.Stepper, "find_gradient", noting)
        assert train(recipe, folder=tmp_path, runtime=cpu, quiet=True).finished
    assert seen == [(16, 16)] * 3 + [(24, 16)] * 3 + [(32, 24)] * 6


@pytest.mark.parametrize("positions", ["sinusoid", "sinusoid_2d", "relative"])
@pytest.mark.parametrize("steps", [2, 4])
def test_a_run_resumes_exactly_within_every_size(
    tiny: Tiny,
    cpu: Runtime,
    tmp_path: Path,
    interrupt_after: Callable[[int | None], None],
    steps: int,
    positions: str,
) -> None:
    base = tiny(random=True)
    recipe = tiny(
        random=True,
        image_size=(16, 16),
        progressive_resizing=RESIZING,
        model_args={**base.model_args, "positions": positions},
    )
    options: dict[str, Any] = {"runtime": cpu, "quiet": True}
    interrupt_after(None)
    train(recipe, folder=tmp_path / "whole", **options)
    interrupt_after(steps)
    assert not train(recipe, folder=tmp_path / "parts", **options).finished
    interrupt_after(None)
    assert train(recipe, folder=tmp_path / "parts", **options).finished
    whole, parts = (
        load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts")
    )
    for name, tensor in whole.items():
        torch.testing.assert_close(parts[name], tensor, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"task": "masked_autoencoder"}, "images of one size"),
        ({"model": "deit_tiny_patch16_224", "model_args": {}}, "one size only"),
    ],
)
def test_what_needs_one_size_is_refused(
    tiny: Tiny, cpu: Runtime, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    recipe = tiny(image_size=(32, 32), progressive_resizing=RESIZING, **changes)
    with pytest.raises(UserError, match=words):
        train(recipe, folder=tmp_path / "run", runtime=cpu, quiet=True)


@pytest.mark.parametrize(
    "settings", [{"initial_scale": 0}, {"initial_scale": 2}, {"num_sizes": 0}]
)
def test_sizes_that_cannot_be(settings: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="progressive_resizing"):
        ProgressiveResizing(**settings)
