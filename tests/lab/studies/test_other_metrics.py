"""Studies and records of tasks whose primary metric is not top-1."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor, nn

from t2t.cli import main
from t2t.data.augment.config import Augmentation
from t2t.data.augment.pipeline import augment_images
from t2t.data.rng import CounterRng
from t2t.errors import UserError
from t2t.lab.studies.results import Arm, ModelCost, compare_claim
from t2t.lab.studies.run import run_study
from t2t.lab.studies.study import Claim, Study
from t2t.shapes import Images, Labels, Pixels
from t2t.tasks import Metric, Task, register_task
from t2t.tasks.base import VAL_LOSS, Numbers, Views
from t2t.training.recipe import Recipe
from t2t.training.runtime import Runtime


@register_task("test_mean_colour")
class MeanColour(Task):
    """The model's features predict the mean colour; needs no labels."""

    needs_labels = False
    metrics = (
        Metric("colour_error", "colour error", digits=3, higher_is_better=False),
        VAL_LOSS,
    )

    def views(
        self,
        pixels: tuple[Pixels, ...],
        labels: Labels,
        rng: CounterRng,
        augmentation: Augmentation,
    ) -> Views:
        return {"images": augment_images(pixels[0], rng, augmentation)}

    def errors(self, model: nn.Module, images: Images) -> Tensor:
        return (model(images)[:, :3] - images.mean((2, 3))).square().mean(1)

    def forward(self, views: Views) -> Numbers:
        return {"loss": self.errors(self.model, views["images"]).mean()}

    def score(self, model: nn.Module, images: Images, labels: Labels) -> Views:
        errors = self.errors(model, images)
        return {"colour_error": errors.sqrt(), "val_loss": errors}


def test_a_study_without_labels_is_trained_tabled_and_recorded(
    tiny_study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    data = Path(tiny_study.arms["t2t"].data)
    for number, path in enumerate(sorted(data.rglob("*.png"))):
        (flat / f"{number}.png").write_bytes(path.read_bytes())

    def without_labels(recipe: Recipe) -> Recipe:
        return replace(recipe, task="test_mean_colour", data=str(flat), epochs=1)

    study = tiny_study.changed(without_labels)
    runtime = Runtime(device="cpu", compile="off", workers=1)
    folder = tmp_path / "studies"
    result = run_study(study, (0, 1), folder, runtime=runtime, quiet=True)
    assert not result.failed
    table = (folder / "tiny_tokens" / "table.md").read_text()
    assert "| images/s | colour error | raw | seeds |" in table
    assert " in colour error; published +2.0 points of accuracy (here)." in table
    assert "top-1" not in table
    numbers = json.loads((folder / "tiny_tokens" / "table.json").read_text())
    assert numbers["metric"] == "colour_error"
    means = [arm["colour_error"]["mean"] for arm in numbers["arms"]]
    assert all(0 < mean < 10 for mean in means)

    assert main(["record", str(folder), "--out", str(tmp_path / "record")]) == 0
    kept = tmp_path / "record" / "runs" / "tiny"
    summary = json.loads((kept / "summary.json").read_text())
    assert summary["colour_error"] == [
        json.loads((kept / f"seed{seed}.json").read_text())["colour_error"]
        for seed in (0, 1)
    ]
    assert "top1" not in summary
    assert "| seed | colour error (EMA) |" in (kept / "README.md").read_text()
    run = folder / "runs" / "tiny-seed0"
    capsys.readouterr()
    assert main(["record", str(run), "--out", str(tmp_path / "single")]) == 0
    shown = f"tiny, colour error {summary['colour_error'][0]:.3f} (seeds [0])"
    assert shown in capsys.readouterr().out
    assert main(["ship", str(run), "--out", str(tmp_path / "shipped")]) == 2
    assert "its task is test_mean_colour, and only a run that learned to classify" in (
        capsys.readouterr().err
    )


def arm(name: str, *values: float) -> Arm:
    return Arm(
        name=name,
        recipe=Recipe(name=name, model="t2t_vit_7_32", task="test_mean_colour"),
        cost=ModelCost(parameters=1, macs=1),
        results={seed: {"colour_error": each} for seed, each in enumerate(values)},
    )


def test_a_lower_error_is_better() -> None:
    claim = Claim(first="a", second="b", where="Table 0", published=(81.5, 79.5))
    arms = {"a": arm("a", 0.1, 0.12), "b": arm("b", 0.5, 0.52)}
    finding = compare_claim(claim, arms, num_classes=0)
    assert finding is not None
    assert str(finding) == (
        "Agrees: `a` − `b` is −0.400 ± 0.028 in colour error; published +2.0 points of "
        "accuracy (Table 0)."
    )
    other = compare_claim(replace(claim, first="b", second="a"), arms, 0)
    assert other is not None
    assert other.verdict == "disagrees"


def test_close_errors_are_not_alike_by_points_of_accuracy() -> None:
    claim = Claim(first="a", second="b", where="Table 0")
    arms = {"a": arm("a", 0.10, 0.11), "b": arm("b", 0.30, 0.31)}
    finding = compare_claim(claim, arms, 0)
    assert finding is not None
    assert finding.verdict == "disagrees"


def test_arms_with_different_metrics_are_refused(
    tiny_study: Study, tmp_path: Path
) -> None:
    mixed = {
        **tiny_study.arms,
        "other": replace(tiny_study.arms["t2t"], name="o", task="test_mean_colour"),
    }
    with pytest.raises(UserError, match=r"metrics \(top1, colour_error\) and"):
        run_study(replace(tiny_study, arms=mixed), (0,), tmp_path / "here")
    assert not (tmp_path / "here").exists()
