"""What the studies are made of, and how their verdicts come about."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from matplotlib.figure import Figure

from t2t.commands.study import forecast_sentence, format_macs, format_seconds
from t2t.config import to_json
from t2t.errors import UserError
from t2t.lab.records.record import FinishedRun
from t2t.lab.studies import STUDIES, find_study
from t2t.lab.studies.figures import draw_arms, draw_costs, draw_seeds, draw_study
from t2t.lab.studies.forecast import data_size, forecast
from t2t.lab.studies.paper import EPOCHS
from t2t.lab.studies.report import as_json, markdown
from t2t.lab.studies.results import (
    Arm,
    ModelCost,
    StudyResult,
    compare_claim,
    costs_of,
    run_folder,
)
from t2t.lab.studies.study import Claim, Study
from t2t.training.initial_state import build_model
from t2t.training.optim import build_optimizers
from t2t.training.recipe import Recipe
from t2t.training.run_files import write_json
from t2t.training.saved_run import RESULT_TYPES


def test_arms_of_one_name_are_one_recipe() -> None:
    """Studies share run folders by the names of recipes."""
    seen: dict[str, dict[str, object]] = {}
    for make in STUDIES.values():
        for recipe in make().arms.values():
            plain = to_json(recipe)
            assert seen.setdefault(recipe.name, plain) == plain


def test_arms_of_one_name_and_two_recipes_are_refused(tiny_study: Study) -> None:
    base = tiny_study.arms["t2t"]
    arms = {"one": base, "same": base, "other": replace(base, epochs=9)}
    with pytest.raises(UserError, match="arm other is named tiny, like another arm's"):
        replace(tiny_study, arms=arms, claims=())


@pytest.mark.parametrize("name", STUDIES)
def test_all_arms_are_trained_alike(name: str) -> None:
    study = find_study(name)
    assert study.name == name
    ours = {"name", "model", "model_args"}
    rests = [
        {key: value for key, value in to_json(recipe).items() if key not in ours}
        for recipe in study.arms.values()
    ]
    assert all(rest == rests[0] for rest in rests)


@pytest.mark.parametrize("name", STUDIES)
def test_every_arm_can_start(name: str) -> None:
    for recipe in find_study(name).arms.values():
        with torch.device("meta"):
            model = build_model(recipe, 10)
        assert build_optimizers(model, recipe)
        # Networks without tokens, and those that ask for their places, can drop none.
        assert recipe.token_dropping.keep_at(0.0) == 1


# Parameters and MACs over those of the first arm, as the studies' notes state them.
STATED = {
    "tokens": {"patches": (0.93, 0.92), "patches_deeper": (1.06, 1.06)},
    "token_transformer": {"softmax": (1.00, 1.10), "convolution": (0.97, 0.96)},
    "depth": {"shallow_wide": (1.17, 1.05)},
    "designs": {
        "se": (1.01, 1.00),
        "dense": (0.97, 1.00),
        "more_heads": (1.00, 1.00),
        "ghost": (0.80, 0.87),
    },
    "head": {"class_token": (1.00, 1.00)},
    "positions": {
        "1d": (1.02, 1.00),
        "2d": (1.00, 1.00),
        "none": (1.00, 1.00),
        "sinusoid": (1.00, 1.00),
        "relative": (1.01, 1.00),
    },
    "networks": {
        "vit": (1.04, 0.96),
        "deit": (1.00, 0.98),
        "convolution_tokens": (0.93, 0.92),
        "resnet18": (2.76, 0.43),
        "resnet50": (5.82, 1.02),
        "mobilenet_v2": (0.55, 0.07),
    },
    "local": {
        "depthwise": (1.01, 1.01),
        "conv_attention": (1.01, 1.01),
        "axial": (1.00, 0.83),
        "pyramid": (1.06, 0.26),
        "pyramid_depthwise": (1.07, 0.26),
    },
    "photo_local": {
        "depthwise": (1.01, 1.01),
        "conv_attention": (1.01, 1.01),
        "axial": (1.00, 0.89),
        "pyramid": (0.94, 0.29),
        "pyramid_depthwise": (0.95, 0.30),
    },
    "photo_tokens": {"patches": (0.99, 0.98)},
    "photo_depth": {"shallow_wide": (1.15, 1.08)},
    "photo_networks": {
        "pyramid": (0.95, 0.23),
        "deit_small_8": (1.02, 0.99),
        "deit_small_16": (1.03, 0.23),
        "resnet18": (0.53, 0.10),
        "resnet50": (1.12, 0.22),
    },
}


@pytest.mark.parametrize("name", STUDIES)
def test_costs_are_as_stated(name: str) -> None:
    first, *others = costs_of(find_study(name), 10).items()
    for arm, cost in others:
        parameters, macs = STATED[name][arm]
        assert cost.parameters / first[1].parameters == pytest.approx(
            parameters, abs=0.006
        )
        assert cost.macs / first[1].macs == pytest.approx(macs, abs=0.006)


def arm(name: str, *top1: float) -> Arm:
    return Arm(
        name=name,
        recipe=Recipe(name=name, model="t2t_vit_7_32"),
        cost=ModelCost(parameters=1, macs=1),
        results={seed: {"top1": value} for seed, value in enumerate(top1)},
    )


@pytest.mark.parametrize(
    ("published", "first", "second", "verdict"),
    [
        # Clearly better, as published, and the other way round.
        ((81.5, 79.5), (95.0, 95.2, 95.4), (93.0, 93.2, 93.4), "agrees"),
        ((79.5, 81.5), (95.0, 95.2, 95.4), (93.0, 93.2, 93.4), "disagrees"),
        ((79.5, 81.5), (93.0, 93.2, 93.4), (95.0, 95.2, 95.4), "agrees"),
        # 0.2 points apart with an error of 0.33: could be chance.
        ((81.5, 79.5), (95.2, 95.4, 95.6), (95.0, 95.2, 95.4), "undecided"),
        # Published as alike: 0.2 apart is, 2 apart is not.
        ((81.6, 81.5), (95.2, 95.4, 95.6), (95.0, 95.2, 95.4), "agrees"),
        (None, (95.0, 95.2, 95.4), (93.0, 93.2, 93.4), "disagrees"),
        # Half a point apart with an error of 0.33; +0.2 and −0.2 were published.
        ((81.7, 81.5), (95.5, 95.7, 95.9), (95.0, 95.2, 95.4), "agrees"),
        ((81.5, 81.7), (95.5, 95.7, 95.9), (95.0, 95.2, 95.4), "disagrees"),
        # Alike here too, though further from −0.3 than from nothing.
        ((81.4, 81.7), (95.2, 95.3, 95.4), (95.0, 95.1, 95.2), "agrees"),
        # Half a point apart with an error of 1.6.
        (None, (95.0, 96.0, 97.0), (94.5, 95.5, 96.5), "agrees"),
        # One seed decides nothing.
        ((81.5, 79.5), (95.0,), (93.0,), "undecided"),
    ],
)
def test_verdicts_follow_means_and_spreads(
    published: tuple[float, float] | None,
    first: tuple[float, ...],
    second: tuple[float, ...],
    verdict: str,
) -> None:
    claim = Claim(first="a", second="b", where="Table 0", published=published)
    finding = compare_claim(claim, {"a": arm("a", *first), "b": arm("b", *second)}, 10)
    assert finding is not None
    assert finding.verdict == verdict
    assert str(finding).startswith(verdict.capitalize())


def test_a_finding_in_words() -> None:
    claim = Claim(first="a", second="b", where="Table 0", published=(81.5, 79.5))
    arms = {"a": arm("a", 95.0, 95.2, 95.4), "b": arm("b", 93.0, 93.2, 93.4)}
    # Twice the root of (0.2² + 0.2²) / 3.
    assert str(compare_claim(claim, arms, 10)) == (
        "Agrees: `a` − `b` is +2.00 ± 0.33 points; published +2.0 (Table 0)."
    )
    assert compare_claim(claim, {"a": arms["a"]}, 10) is None


def test_guessing_decides_nothing() -> None:
    claim = Claim(first="a", second="b", where="Table 0", published=(81.5, 79.5))
    arms = {"a": arm("a", 14.0, 14.2, 14.4), "b": arm("b", 10.0, 10.1, 10.2)}
    finding = compare_claim(claim, arms, 10)
    assert finding is not None
    assert finding.verdict == "undecided"
    assert "both are near chance: train for longer" in str(finding)
    # One that has learnt is better than one that guesses.
    learnt = {**arms, "a": arm("a", 94.0, 94.2, 94.4)}
    finding = compare_claim(claim, learnt, 10)
    assert finding is not None
    assert finding.verdict == "agrees"
    # The same numbers are far from guessing among 100 classes.
    better = compare_claim(claim, arms, 100)
    assert better is not None
    assert better.verdict == "agrees"


@pytest.mark.parametrize("against_cost", [False, True])
def test_words_with_a_dollar_are_drawn_as_they_are(
    against_cost: bool, tmp_path: Path
) -> None:
    arms = {name: arm(name, 90.0, 91.0) for name in ("$a_{$", "costs $5 or $6")}
    for each in arms.values():
        for result in each.results.values():
            cast(dict[str, float], result)["images_per_second"] = 100.0
    study = Study(
        name="odd",
        question="Does $x_{$ help?",
        paper="",
        arms={name: each.recipe for name, each in arms.items()},
        against_cost=against_cost,
    )
    result = StudyResult(study=study, seeds=(0, 1), arms=arms, num_classes=10)
    draw_study(result, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 5_000


@pytest.mark.parametrize(
    ("macs", "words"),
    [
        (3.2e7, "0.032 × 10⁹ MACs"),
        (6.2e13, "62 × 10¹² MACs"),
        (4.56e16, "45.6 × 10¹⁵ MACs"),
        (2e20, "200 × 10¹⁸ MACs"),
    ],
)
def test_multiplications_have_a_unit_that_fits(macs: float, words: str) -> None:
    assert format_macs(macs) == words


def test_a_short_time_is_not_none() -> None:
    assert format_seconds(0.2) == "less than 1 s"
    assert format_seconds(90) == "about 90 s"


def test_a_forecast_counts_what_is_left(tmp_path: Path) -> None:
    rows = forecast(find_study("depth"), (0, 1), tmp_path)
    assert [(row.arm, row.num_done, row.num_runs) for row in rows] == [
        ("deep_narrow", 0, 2),
        ("shallow_wide", 0, 2),
    ]
    steps = 50_000 // 512 * EPOCHS
    assert rows[0].petamacs == pytest.approx(
        2 * 3 * rows[0].cost.macs * steps * 512 / 1e15
    )
    assert rows[0].hours_left == 2 * rows[0].hours > 0


@pytest.mark.parametrize("holdout", [0, 200])
def test_a_forecast_holds_images_out_once(holdout: int) -> None:
    own = find_study("depth").changed(lambda each: replace(each, holdout=holdout))
    size = data_size(own)
    assert (size.train, size.val) == (50_000 - holdout, holdout or 10_000)
    size = data_size(own.changed(lambda each: replace(each, data="digits")))
    assert (size.train, size.val) == (1437 - holdout, holdout or 360)


def sample_result(**values: object) -> dict[str, object]:
    result = {key: kind(1) for key, kind in RESULT_TYPES.items()}
    return {**result, "metric": "top1", "top1": 1.0, "top1_raw": 1.0, **values}


def test_a_forecast_leaves_out_what_is_done(tmp_path: Path) -> None:
    study = find_study("depth")
    own = study.arms["deep_narrow"]
    for seed, epochs in ((0, own.epochs), (1, own.epochs + 1)):
        folder = run_folder(tmp_path, own, seed)
        folder.mkdir(parents=True)
        plain = to_json(replace(own, seed=seed, epochs=epochs))
        write_json(folder / "recipe.json", plain)
        write_json(folder / "result.json", sample_result())
    rows = forecast(study, (0, 1, 2), tmp_path)
    # That of another recipe is none of the study's.
    assert [(row.num_done, row.num_runs) for row in rows] == [(1, 3), (0, 3)]
    assert [row.hours_left / row.hours for row in rows] == [2, 3]


def test_a_forecast_goes_by_the_seeds_that_are_done(tmp_path: Path) -> None:
    study = find_study("depth")
    (own, other) = forecast(study, (0, 1, 2, 3), tmp_path)
    assert not own.is_measured
    assert "s without compiling, on one H200 as" in forecast_sentence([own, other])
    for arm, minutes in (("deep_narrow", (20, 40)), ("shallow_wide", (10,) * 4)):
        for seed, each in enumerate(minutes):
            recipe = replace(study.arms[arm], seed=seed)
            folder = run_folder(tmp_path, recipe, seed)
            folder.mkdir(parents=True)
            write_json(folder / "recipe.json", to_json(recipe))
            write_json(folder / "result.json", sample_result(train_minutes=each))
        rows = forecast(study, (0, 1, 2, 3), tmp_path)
        assert (rows[0].hours, rows[0].hours_left) == (0.5, 1.0)
        told = forecast_sentence(rows)
        assert "compiling, deep_narrow as long as finished seeds took" in told
        assert told.endswith("." if rows[1].is_measured else "many times that.")
        assert (", the others on one H200" in told) == (not rows[1].is_measured)
    assert "2 runs to do" in told
    assert forecast_sentence(rows[1:]).startswith("All runs are done, ")


def sample_arm(holdout: int = 0) -> Arm:
    recipe = Recipe(name="r", model="m", data="photos", epochs=17, holdout=holdout)
    values = {"images_per_second": 1234.4, "train_minutes": 5.0}
    return Arm(
        name="a",
        recipe=recipe,
        cost=ModelCost(parameters=1_230_000, macs=456_000_000),
        results={
            0: {"top1": 90.0, "top1_raw": 70.0, **values},
            3: {"top1": 91.0, "top1_raw": 73.0, **values},
        },
        environments=(
            {"device": "cpu", "torch": "2.11", "precision": "fp32"},
            {"device": "cuda G", "torch": "2.11", "precision": "bf16"},
        ),
    )


@pytest.mark.parametrize(
    ("holdout", "evaluate_model"),
    [(0, "its validation set"), (50, "50 held-out training images")],
)
def test_a_table_names_an_arm_and_its_conditions(
    holdout: int, evaluate_model: str
) -> None:
    one = sample_arm(holdout)
    study = Study(name="s", question="?", paper="", arms={"a": one.recipe})
    result = StudyResult(study=study, seeds=(0, 3), arms={"a": one}, num_classes=10)
    page = markdown(result)
    assert "| `a` | 1.23 | 0.456 | 1,234 | 90.50 ± 0.71 | 71.50 ± 2.12 | 0, 3 |" in page
    assert f"17 epochs of photos, evaluated on {evaluate_model}; mean ±" in page
    assert "On cpu, cuda G, fp32, bf16, torch 2.11." in page
    numbers = as_json(result)["arms"][0]
    assert numbers["train_minutes"]["mean"] == 5
    assert numbers["images_per_second"]["mean"] == 1234.4
    assert numbers["devices"] == ["cpu", "cuda G"]


def test_a_picture_places_mean_spread_and_seeds() -> None:
    (axes,) = draw_arms([sample_arm()]).axes
    seeds, *_ = axes.lines
    assert [*seeds.get_xdata()] == [90, 91]
    mean, _, (bar,) = axes.containers[0].lines
    assert mean.get_xdata() == [90.5]
    assert bar.get_segments()[0][:, 0] == pytest.approx([90.5 - 0.7071, 90.5 + 0.7071])
    panels = draw_costs([sample_arm()]).axes
    assert [panel.containers[0].lines[0].get_xdata()[0] for panel in panels] == [
        *(1.23, 0.456, 1234.4)
    ]


def test_seeds_are_drawn_by_averaged_and_raw_weights_on_one_scale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, *given: Any, **named: Any) -> None:
        figures.append(figure)
        save(figure, *given, **named)

    monkeypatch.setattr(Figure, "savefig", keep)
    rows: list[dict[str, Any]] = [
        {"step": 1, "loss": 2.3},
        {"step": 77_600, "loss": 0.5},
        {"step": 77_600, "top1": 98, "top1_raw": 99},
    ]
    run = FinishedRun(
        folder=tmp_path,
        recipe={"seed": 0, "task": "classify"},
        environment={},
        result={"recipe": "cifar10.long", "metric": "top1"},
        rows=rows,
        log=None,
    )
    draw_seeds([run], tmp_path / "curves.png")
    _, averaged, raw = figures[0].axes
    assert averaged.get_ylim() == raw.get_ylim()
    low, high = averaged.get_ylim()
    assert low < 98 < 99 < high <= 100
    assert "75,000" in [tick.get_text() for tick in averaged.get_xticklabels()]


def test_mistakes_are_reported() -> None:
    with pytest.raises(UserError, match=r"no study 'token'\. Did you mean tokens"):
        find_study("token")
    with pytest.raises(UserError, match="tokens has no arm 'patch'"):
        find_study("tokens").chosen(("patch",))
