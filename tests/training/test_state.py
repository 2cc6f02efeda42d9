"""What a run makes of the weights that it starts from, and what it tells of them."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from t2t.errors import UserError
from t2t.models.weights import save
from t2t.training.distributed import World
from t2t.training.forecast.estimate import estimate
from t2t.training.initial_state import build_model, new_state
from t2t.training.recipe import Recipe
from t2t.training.runtime import Runtime
from t2t.training.train import train


def saved(recipe: Recipe, file: Path, class_names: tuple[str, ...]) -> str:
    model = build_model(recipe, len(class_names))
    torch.nn.init.constant_(model.head.bias, 3)
    return str(save(model, file, class_names=class_names))


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (("apple", "bread", "milk"), "The head was replaced by a new one: its 3 "),
        (("apple", "bread"), "The head for 2 classes was replaced by a new one for"),
        ("same", "The head was kept: its 3 classes are the data's ("),
    ],
)
def test_the_log_reports_what_became_of_the_weights(
    names, sentence, tiny, cpu: Runtime, tmp_path: Path, capsys
) -> None:
    recipe = tiny(epochs=1)
    first = train(recipe, folder=tmp_path / "first", runtime=cpu, quiet=True)
    classes = ("apple", "bread") if names == "same" else names
    file = tmp_path / "weights.safetensors"
    weights = str(first.folder) if names == "same" else saved(recipe, file, classes)
    tuned = replace(recipe, weights=weights)
    result = train(tuned, folder=tmp_path / "run", runtime=cpu)
    log = (result.folder / "log.txt").read_text()
    assert f"Loaded {weights}" in log
    assert sentence in log
    assert sentence in " ".join(capsys.readouterr().out.split())
    assert sentence in estimate(tuned, cpu)


def test_nothing_is_learned_from_nan(tiny, cpu: Runtime, tmp_path: Path) -> None:
    recipe = tiny()
    model = build_model(recipe, 3)
    model.norm.weight.data.fill_(float("nan"))
    file = save(model, tmp_path / "weights.safetensors")
    with pytest.raises(UserError, match=r"contain NaN or infinity in norm\.weight"):
        train(
            replace(recipe, weights=str(file)),
            folder=tmp_path / "run",
            runtime=cpu,
            quiet=True,
        )


def test_skipped_steps_are_counted_on_after_a_resume(tiny, cpu: Runtime) -> None:
    before, after = (
        new_state(tiny(), cpu, World(0, 1, torch.device("cpu")), 3) for _ in range(2)
    )
    before.step, before.num_skipped, before.num_skipped_in_a_row = 9, 4, 3
    after.restore(before.snapshot())
    assert (after.step, after.num_skipped, after.num_skipped_in_a_row) == (9, 4, 3)
