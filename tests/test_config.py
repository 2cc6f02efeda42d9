"""Configs as JSON, and their fields set by words."""

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from t2t.config import differences, from_json, override, to_json
from t2t.errors import UserError, close_matches, require, suggest


@dataclass(frozen=True, kw_only=True)
class Inner:
    rate: float = 0.1
    pair: tuple[float, float] = (0.9, 0.99)
    kind: Literal["plain", "fancy", "none"] = "plain"

    def __post_init__(self) -> None:
        if self.rate > self.pair[0]:
            raise UserError("rate is above the pair")


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    epochs: int = 3
    flag: bool = False
    size: tuple[int, int] = (8, 8)
    widths: tuple[float, ...] = ()
    mixers: tuple[str, ...] = ()
    limit: float | None = None
    inner: Inner = field(default_factory=Inner)
    free: dict[str, Any] = field(default_factory=dict)


CONFIG = Outer(name="one", inner=Inner(rate=0.5), free={"splits": [[3, 1, 1]]})


def test_json_and_back() -> None:
    assert from_json(Outer, to_json(CONFIG)) == CONFIG


@pytest.mark.parametrize(
    ("word", "path", "value"),
    [
        ("epochs=7", "epochs", 7),
        ("name=12", "name", "12"),
        ("flag=true", "flag", True),
        ("flag=False", "flag", False),
        ("limit=2", "limit", 2.0),
        ("limit=none", "limit", None),
        ("limit=null", "limit", None),
        ("limit=None", "limit", None),
        ("inner.rate=1e-3", "inner.rate", 1e-3),
        ("inner.pair=(0.8, 0.95)", "inner.pair", (0.8, 0.95)),
        ("inner.kind=fancy", "inner.kind", "fancy"),
        ("inner.kind=none", "inner.kind", "none"),
        ("free.depth=4", "free.depth", 4),
        ("size=64", "size", (64, 64)),
        ("size=64,32", "size", (64, 32)),
        ("widths=0.5", "widths", (0.5,)),
        ("widths=2", "widths", (2.0,)),
        ("mixers=axial", "mixers", ("axial",)),
        ("mixers=axial, ghost", "mixers", ("axial", "ghost")),
        ("mixers=['axial', 'ghost']", "mixers", ("axial", "ghost")),
    ],
)
def test_words_set_fields(word: str, path: str, value: object) -> None:
    found: Any = override(CONFIG, [word])
    for name in path.split("."):
        found = found[name] if isinstance(found, dict) else getattr(found, name)
    assert found == value


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("epocs=3", "Did you mean epochs"),
        ("inner.rte=3", "Did you mean inner.rate"),
        ("rate=3", "There is no setting 'rate'. Did you mean inner.rate\\?"),
        ("size=big", "size takes one whole number or two, such as 224 or 192,256"),
        ("zzzzzz=3", "There is no setting 'zzzzzz'. (Allowed|There are): .*epochs"),
        ("epochs=many", "epochs=many is not allowed: epochs takes a whole number"),
        ("epochs=1.5", "whole number"),
        ("flag=perhaps", "true or false"),
        ("inner.kind=odd", "plain, fancy, none"),
        ("inner.pair=[1]", "numbers, such as 1,1"),
        ("mixers=3", "mixers takes names, such as axial,attention"),
        ("name.first=x", "no fields"),
        ("epochs", "NAME=VALUE"),
    ],
)
def test_mistakes_are_reported_in_one_sentence(word: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        override(CONFIG, [word])


def test_fields_that_belong_together_change_together() -> None:
    changed = override(CONFIG, ["inner.rate=0.95", "inner.pair=[0.96,0.99]"])
    assert changed.inner.rate == 0.95
    with pytest.raises(UserError, match="above the pair"):
        override(CONFIG, ["inner.rate=0.95"])


def test_what_json_has_too_much_is_named() -> None:
    with pytest.raises(UserError, match=r"Outer has no field 'epoch'\. Did you mean"):
        from_json(Outer, {"name": "one", "epoch": 3})


def test_what_json_lacks_is_named() -> None:
    with pytest.raises(UserError, match=r"^A Outer needs the field name\.$"):
        from_json(Outer, {"epochs": 3})


def test_a_suggestion_names_nothing_twice() -> None:
    assert suggest("sgdd", ["sgd", "adam", "sgd"]) == " Did you mean sgd?"


COMMANDS = ("bench", "eval", "models", "pack", "plan", "predict", "record", "train")


@pytest.mark.parametrize(
    ("word", "allowed", "meant"),
    [
        ("trian", COMMANDS, ["train"]),
        ("shwo", ("show", "ship"), ["show"]),
        ("val", COMMANDS, ["eval"]),
        ("evaluate", COMMANDS, ["eval"]),
        ("pred", COMMANDS, ["predict"]),
        ("training", COMMANDS, ["train"]),
        ("export", COMMANDS, []),
        ("list", COMMANDS, []),
        ("x", ("t", "y"), []),
        ("--pretrained", ("--parallelism", "--precision", "--seed"), []),
        ("--batchsize", ("--batch-size", "--seed"), ["--batch-size"]),
        ("presicion", ("precision", "spread"), ["precision"]),
        ("T2T-ViT-14", ("t2t_vit_14", "t2t_vit_19"), ["t2t_vit_14"]),
        ("warmup", ("schedule.warmup_epochs", "epochs"), ["schedule.warmup_epochs"]),
        ("cifar", ("cifar10", "cifar100", "mnist"), ["cifar10", "cifar100"]),
    ],
)
def test_only_what_is_near_is_suggested(
    word: str, allowed: tuple[str, ...], meant: list[str]
) -> None:
    assert close_matches(word, allowed) == meant


@pytest.mark.parametrize(
    ("value", "limits", "sentence"),
    [
        (-1, {"least": 0}, "x=-1 must be 0 or more."),
        (float("nan"), {"least": 0}, "x=nan must be 0 or more."),
        (float("inf"), {"least": 0}, "x=inf must be 0 or more."),
        (2.0, {"least": 0, "most": 1}, "x=2.0 must be from 0 to 1."),
        (1, {"least": 0, "below": 1}, "x=1 must be from 0 to below 1."),
        (200_000, {"least": 1, "most": 100_000}, "x=200000 must be from 1 to 100000."),
    ],
)
def test_a_number_out_of_its_range_is_reported(
    value: float, limits: dict[str, float], sentence: str
) -> None:
    with pytest.raises(UserError) as told:
        require("x", value, **limits)
    assert str(told.value) == sentence
    require("x", limits["least"], **limits)


def test_differences_name_the_field_and_both_values() -> None:
    other = override(CONFIG, ["inner.rate=0.2", "epochs=4"])
    assert differences(to_json(CONFIG), to_json(other)) == [
        "epochs: 3 → 4",
        "inner.rate: 0.5 → 0.2",
    ]
