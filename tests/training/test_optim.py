"""Which parameters decay, which layers learn slowly, and how the rate moves."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from t2t.errors import UserError
from t2t.models.create import create_model
from t2t.recipes import find_recipe
from t2t.training.initial_state import build_model
from t2t.training.muon import Muon
from t2t.training.optim import (
    OPTIMIZERS,
    all_groups,
    build_optimizers,
    register_optimizer,
)
from t2t.training.parameter_groups import hidden_weights, parameter_groups
from t2t.training.recipe import OptimizerConfig, Recipe, Schedule
from t2t.training.schedule import lr_factor, set_lr

Tiny = Callable[..., Recipe]


def settings_of(model: nn.Module, recipe: Recipe) -> dict[str, dict[str, Any]]:
    """The group of every parameter that is trained, by name."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    found = {}
    for group in all_groups(build_optimizers(model, recipe)):
        for parameter in group["params"]:
            assert names[parameter] not in found
            found[names[parameter]] = group
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert found.keys() == trained
    return found


@pytest.mark.parametrize("name", ["adamw", "muon", "sgd", "lamb", "lion"])
def test_norms_biases_tokens_and_positions_do_not_decay(name: str, tiny: Tiny) -> None:
    recipe = tiny(optimizer=OptimizerConfig(name=name, weight_decay=0.3))
    model_args = {
        **recipe.model_args,
        "class_token": True,
        "pool": "class",
        "qkv_bias": True,
    }
    model = build_model(replace(recipe, model_args=model_args), 3)
    groups = settings_of(model, recipe)
    bare = {name for name, group in groups.items() if group["weight_decay"] == 0}
    for part in ("prefix", "encoder.positions.", "norm", ".bias"):
        chosen = {name for name in groups if part in name}
        assert chosen
        assert chosen <= bare
    matrices = {name for name, p in model.named_parameters() if p.ndim > 1} - bare
    assert {groups[name]["weight_decay"] for name in matrices} == {0.3}
    assert {"head.weight", "encoder.blocks.0.mixer.qkv.weight"} <= matrices
    assert bare | matrices == groups.keys()


@pytest.mark.parametrize(
    "name", ["t2t_vit_7_32", "deit_tiny_distilled", "t2t_vit_dense", "test_vit"]
)
def test_groups_are_timms(name: str) -> None:
    import timm.optim

    model = create_model(name, num_classes=3)
    exempt = model.no_weight_decay()  # type: ignore[operator]
    for layer_decay in (1.0, 0.75):
        settings = {"weight_decay": 0.05, "no_weight_decay_list": exempt}
        if layer_decay == 1:
            theirs = timm.optim.param_groups_weight_decay(model, **settings)
        else:
            theirs = timm.optim.param_groups_layer_decay(
                model, layer_decay=layer_decay, **settings
            )
        config = OptimizerConfig(weight_decay=0.05, layer_decay=layer_decay)
        ours = parameter_groups(model, config, lr=1.0)
        expected, found = (
            {
                parameter: (group["weight_decay"], group.get(scale, 1.0))
                for group in groups
                for parameter in group["params"]
            }
            for groups, scale in ((theirs, "lr_scale"), (ours, "peak"))
        )
        assert found.keys() == expected.keys()
        for parameter, (decay, scale) in expected.items():
            assert found[parameter] == (decay, pytest.approx(scale))


def test_muon_takes_the_matrices_of_the_blocks(tiny: Tiny) -> None:
    recipe = tiny(optimizer=OptimizerConfig(name="muon", lr=4e-3, adamw_lr=1e-3))
    model = build_model(recipe, 3)
    muon, adamw = build_optimizers(model, recipe)
    assert isinstance(muon, Muon)
    assert isinstance(adamw, torch.optim.AdamW)
    names = {parameter: name for name, parameter in model.named_parameters()}
    (group,) = muon.param_groups
    taken = {names[parameter] for parameter in group["params"]}
    assert taken == {
        f"encoder.blocks.{layer}.{part}.weight"
        for layer in (0, 1)
        for part in ("mixer.qkv", "mixer.proj", "mlp.expand.0", "mlp.reduce")
    }
    scale = recipe.batch_size / 512
    assert group["peak"] == pytest.approx(4e-3 * scale)
    assert all(g["peak"] == pytest.approx(1e-3 * scale) for g in adamw.param_groups)


def test_muon_takes_what_makes_the_tokens_where_asked(tiny: Tiny) -> None:
    recipe = tiny(optimizer=OptimizerConfig(name="muon", muon_on="tokens_too"))
    model = build_model(recipe, 3)
    muon, _ = build_optimizers(model, recipe)
    taken = {id(each) for group in muon.param_groups for each in group["params"]}
    named = dict(model.named_parameters())
    matrices = {
        name
        for name, parameter in named.items()
        if name.startswith("tokenizer.") and parameter.ndim == 2
    }
    assert {"tokenizer.steps.0.qkv.weight", "tokenizer.project.weight"} <= matrices
    assert all(id(named[name]) in taken for name in matrices)
    assert id(named["head.weight"]) not in taken


def test_layer_decay_slows_each_layer_more_than_the_one_above(tiny: Tiny) -> None:
    recipe = tiny(
        optimizer=OptimizerConfig(lr=1.0, reference_batch_size=16, layer_decay=0.5)
    )
    groups = settings_of(build_model(recipe, 3), recipe)
    peaks = {name: group["peak"] for name, group in groups.items()}
    assert peaks["head.weight"] == 1
    assert peaks["norm.weight"] == 0.5
    assert peaks["encoder.blocks.1.mlp.reduce.weight"] == 0.5
    assert peaks["encoder.blocks.0.mlp.reduce.weight"] == 0.25
    stem = {peak for name, peak in peaks.items() if name.startswith("tokenizer")}
    assert stem == {0.125}


def test_layer_decay_needs_named_layers() -> None:
    recipe = Recipe(name="x", model="x", optimizer=OptimizerConfig(layer_decay=0.5))
    with pytest.raises(UserError, match="names its layers, which Linear does not"):
        build_optimizers(nn.Linear(2, 2), recipe)


def test_body_can_learn_slower_than_the_head(tiny: Tiny) -> None:
    settings = OptimizerConfig(
        name="sgd", lr=0.05, body_lr=5e-4, reference_batch_size=16
    )
    recipe = tiny(optimizer=settings)
    groups = settings_of(build_model(recipe, 3), recipe)
    for name, group in groups.items():
        wanted = 0.05 if name.startswith("head.") else 5e-4
        assert group["peak"] == pytest.approx(wanted)
    recipe = tiny(optimizer=replace(settings, layer_decay=0.5))
    groups = settings_of(build_model(recipe, 3), recipe)
    for name, wanted in (("head", 0.05), ("norm", 2.5e-4), ("tokenizer.project", 6e-5)):
        assert groups[f"{name}.weight"]["peak"] == pytest.approx(wanted, rel=0.1)


@pytest.mark.parametrize(
    ("scaling", "factor"), [("linear", 4.0), ("sqrt", 2.0), ("none", 1.0)]
)
def test_learning_rate_follows_the_batch_by_a_stated_rule(
    scaling: Any, factor: float
) -> None:
    settings = OptimizerConfig(lr=1e-3, reference_batch_size=256, scaling=scaling)
    assert settings.scaled(1e-3, 1024) == pytest.approx(1e-3 * factor)
    assert settings.scaled(1e-3, 256) == 1e-3


@pytest.mark.parametrize(
    ("epoch", "share"),
    [
        (0, 0.001),
        (5, 0.5005),
        (10, 1.0),
        (155, 0.51),
        (82.5, 0.51 + 0.49 * 2**-0.5),
        (300, 0.02),
        (305, 0.02),
    ],
)
def test_cosine_of_the_published_recipe(epoch: float, share: float) -> None:
    schedule = Schedule(warmup_epochs=10, floor=0.02, floor_epochs=10)
    assert lr_factor(schedule, epoch, 310) == pytest.approx(share)


def test_imagenet_recipes_move_the_rate_as_the_reference_does() -> None:
    """timm's cosine over 300 epochs, its first ten overwritten by the warm-up."""
    from timm.scheduler import CosineLRScheduler

    recipe = find_recipe("imagenet.t2t_vit_14")
    peak = recipe.optimizer.scaled(recipe.optimizer.lr, recipe.batch_size)
    theirs = CosineLRScheduler(
        torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=peak),
        t_initial=300,
        lr_min=1e-5,
        warmup_t=10,
        warmup_lr_init=1e-6,
        cycle_limit=1,
    )
    for epoch in (0, 1, 5, 9, 10, 11, 50, 150, 250, 299, 300, 309):
        (expected,) = theirs._get_lr(epoch)
        for into in (0.0, 0.5, 0.999):
            share = lr_factor(recipe.schedule, epoch + into, recipe.epochs)
            assert peak * share == pytest.approx(expected, rel=1e-9), epoch


@pytest.mark.parametrize("by_epoch", [True, False])
@pytest.mark.parametrize("prefix", [True, False])
def test_cosine_is_timms_at_every_step(by_epoch: bool, prefix: bool) -> None:
    from timm.scheduler import CosineLRScheduler

    epochs, floor_epochs, warmup, per_epoch = 20, 3, 4, 7
    unit = 1 if by_epoch else per_epoch
    theirs = CosineLRScheduler(
        torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0),
        t_initial=(epochs - floor_epochs - warmup * prefix) * unit,
        lr_min=0.02,
        warmup_t=warmup * unit,
        warmup_lr_init=0.001,
        warmup_prefix=prefix,
    )
    schedule = Schedule(
        warmup_epochs=warmup,
        warmup_prefix=prefix,
        update_every="epoch" if by_epoch else "step",
        start=0.001,
        floor=0.02,
        floor_epochs=floor_epochs,
    )
    for step in range(epochs * per_epoch):
        (expected,) = theirs._get_lr(step // per_epoch if by_epoch else step)
        ours = lr_factor(schedule, step / per_epoch, epochs)
        assert ours == pytest.approx(expected, rel=1e-9)


def test_other_schedules() -> None:
    linear = Schedule(name="linear", warmup_epochs=0, floor=0.0)
    assert [lr_factor(linear, epoch, 4) for epoch in range(5)] == [
        1,
        0.75,
        0.5,
        0.25,
        0,
    ]
    constant = Schedule(name="constant", warmup_epochs=2, start=0.0, floor=0.1)
    found = [lr_factor(constant, epoch, 4) for epoch in range(5)]
    assert found == [0, 0.5, 1, 1, 1]


def test_set_lr_scales_every_group_from_its_peak(tiny: Tiny) -> None:
    recipe = tiny(optimizer=OptimizerConfig(name="muon", lr=1e-2, layer_decay=0.7))
    optimizers = build_optimizers(build_model(recipe, 3), recipe)
    for share in (0.5, 0.1):
        set_lr(optimizers, share)
        assert all(
            group["lr"] == group["peak"] * share for group in all_groups(optimizers)
        )


def test_settings_reach_the_optimizers(tiny: Tiny) -> None:
    model = build_model(tiny(), 3)
    given = {"betas": (0.8, 0.95), "momentum": 0.7}
    for name, setting in (
        *((name, "betas") for name in ("adamw", "muon", "lamb", "nadamw")),
        *((name, "momentum") for name in ("sgd", "lars")),
    ):
        recipe = tiny(optimizer=OptimizerConfig(name=name, **given))  # type: ignore[arg-type]
        groups = build_optimizers(model, recipe)[-1].param_groups
        assert all(group[setting] == given[setting] for group in groups), name


@pytest.mark.parametrize("name", ["adahessian", "kron"])
def test_optimizers_that_could_not_be_trained_with_are_refused(
    name: str, tiny: Tiny
) -> None:
    recipe = tiny(optimizer=OptimizerConfig(name=name))
    with pytest.raises(UserError, match=f"{name} is not supported"):
        build_optimizers(build_model(tiny(), 3), recipe)


def test_misspelt_optimizer_is_refused_with_a_suggestion(tiny: Tiny) -> None:
    recipe = tiny(optimizer=OptimizerConfig(name="muom"))
    with pytest.raises(UserError, match=r"no optimizer 'muom'\. Did you mean muon"):
        build_optimizers(build_model(tiny(), 3), recipe)
    recipe = tiny(optimizer=OptimizerConfig(name="foo"))
    with pytest.raises(UserError, match="Allowed: adamw, muon, sgd and those of timm"):
        build_optimizers(build_model(tiny(), 3), recipe)


@pytest.mark.parametrize(
    ("name", "takes", "leaves"),
    [
        ("resnet18_32", ("layer1.0.conv1", "layer4.0.downsample.0"), ("fc",)),
        (
            "mobilenetv2_32",
            ("blocks.1.0.conv_pw", "blocks.1.0.conv_pwl", "conv_head"),
            ("blocks.1.0.conv_dw", "classifier"),  # filters of a channel each
        ),
        ("deit_tiny", ("encoder.blocks.0.mlp.reduce",), ("head",)),
    ],
)
def test_muon_takes_the_filters_of_convolutions(
    name: str, takes: tuple[str, ...], leaves: tuple[str, ...]
) -> None:
    model = build_model(Recipe(name="x", model=name), 3)
    first = {"resnet18_32": "conv1", "mobilenetv2_32": "conv_stem"}.get(
        name, "tokenizer.project"
    )
    for first_too in (False, True):
        taken = hidden_weights(model, first_too=first_too)
        assert {f"{layer}.weight" for layer in takes} <= taken
        assert not {f"{layer}.weight" for layer in leaves} & taken
        assert (f"{first}.weight" in taken) == first_too
        assert all(model.get_parameter(each).ndim in (2, 4) for each in taken)


def test_muon_needs_layers_that_it_can_distinguish() -> None:
    recipe = Recipe(name="x", model="x", optimizer=OptimizerConfig(name="muon"))
    with pytest.raises(UserError, match="muon needs a model that names its layers"):
        build_optimizers(nn.Linear(2, 2), recipe)


def test_muon_needs_more_than_a_first_layer() -> None:
    class Flat(nn.Linear):
        def group_matcher(self) -> dict[str, str]:
            return {"stem": r"."}

    recipe = Recipe(name="x", model="x", optimizer=OptimizerConfig(name="muon"))
    with pytest.raises(UserError, match="layers between its first and its head"):
        build_optimizers(Flat(2, 2), recipe)


@pytest.mark.parametrize("name", ["lr", "adamw_lr", "weight_decay", "clip_norm"])
def test_rates_below_zero_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=rf"optimizer\.{name}=-1 must be 0 or more"):
        OptimizerConfig(**{name: -1})


def test_an_optimizer_whose_package_is_missing_is_refused(tiny: Tiny) -> None:
    recipe = tiny(optimizer=OptimizerConfig(name="bnbadam"))
    with pytest.raises(UserError, match="bnbadam cannot be used here"):
        build_optimizers(build_model(tiny(), 3), recipe)


def test_a_body_cannot_be_trained_beside_a_rate_of_0() -> None:
    with pytest.raises(UserError, match=r"set optimizer\.lr above 0"):
        OptimizerConfig(lr=0.0, body_lr=1e-3)


@pytest.mark.parametrize("name", ["adamw", "muon", "lamb"])
def test_a_name_of_t2t_or_timm_is_not_registered_again(name: str) -> None:
    with pytest.raises(UserError, match=f"{name}.* choose another name"):
        register_optimizer(name)


def flattened(groups: list[dict[str, Any]], _: OptimizerConfig) -> torch.optim.SGD:
    return torch.optim.SGD([each for group in groups for each in group["params"]])


class Unfinished(torch.optim.Optimizer): ...


@pytest.mark.parametrize(
    ("builder", "sentence"),
    [
        (lambda groups, _: torch.optim.SGD(groups[:1]), r"trains \d+ of \d+ weights"),
        (flattened, "has lost their settings"),
        (lambda groups, _: Unfinished(groups, {}), "defines no step"),
        (lambda groups: None, "is called with 2 arguments"),
        (torch.optim.SGD, "is the class SGD, which takes lr second and is given"),
    ],
)
def test_an_optimizer_of_ones_own_is_checked(
    builder: Any, sentence: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(OPTIMIZERS, "own", builder)
    recipe = tiny(optimizer=OptimizerConfig(name="own"))
    with pytest.raises(UserError, match=sentence):
        build_optimizers(build_model(recipe, 3), recipe)


def test_vectors_of_a_tasks_own_modules_do_not_decay(tiny: Tiny) -> None:
    recipe = tiny(optimizer=OptimizerConfig(weight_decay=0.3))
    own = nn.Linear(3, 3)
    model = build_model(recipe, 3)
    others = [own, own, model.head]
    groups = [*all_groups(build_optimizers(model, recipe, others))]
    decay = {
        parameter: group["weight_decay"]
        for group in groups
        for parameter in group["params"]
    }
    assert (decay[own.weight], decay[own.bias]) == (0.3, 0.0)
    assert sum(len(group["params"]) for group in groups) == len(decay)
