"""Rows of steps: what they say, and that one failure stops no other."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from t2t.analysis.cost import count
from t2t.errors import UserError
from t2t.lab.bench import measure as measuring
from t2t.lab.bench.cases import Case, all_cases, case_flops, default_depth
from t2t.lab.bench.measure import measure_cases
from t2t.lab.bench.profiling import busy_share, longest_kernels, profile_steps
from t2t.lab.bench.steps import inference_step, training_step
from t2t.lab.bench.timing import PeakMemory, Timing, matrix_rate, time_steps
from t2t.models.create import create_model
from t2t.training.runtime import PRECISIONS

CPU = torch.device("cpu")
SMALL = Case(
    model="t2t_vit_7", image_size=32, batch=2, precision="fp32", launch="eager"
)


def test_a_training_step_changes_weights_and_average() -> None:
    torch.manual_seed(0)
    model = SMALL.build()
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    step = training_step(model, SMALL, CPU)
    step()
    assert model.training
    for name, weight in model.named_parameters():
        assert weight.grad is None
        assert not torch.equal(weight, before[name]), name
    (ema,) = [
        cell.cell_contents
        for name, cell in zip(
            step.__code__.co_freevars, step.__closure__ or (), strict=True
        )
        if name == "ema"
    ]
    for kept, weight, old in zip(ema, model.parameters(), before.values(), strict=True):
        torch.testing.assert_close(kept, old + 1e-4 * (weight - old))


def test_a_network_without_branches_to_drop_is_built_without() -> None:
    with torch.device("meta"):
        assert isinstance(replace(SMALL, model="vgg11").build(), nn.Module)
        deit = replace(SMALL, model="deit_tiny_patch16_224").build()
        with pytest.raises(UserError, match="no model 'vgg'"):
            replace(SMALL, model="vgg").build()
    assert deit.get_submodule("blocks.11.drop_path1").drop_prob == pytest.approx(0.1)


def test_labels_are_of_the_models_own_classes() -> None:
    torch.manual_seed(0)
    few = replace(SMALL, model="t2t_vit_7_32", batch=8)
    model = few.build()
    assert model.num_classes == 10
    training_step(model, few, CPU)()


def test_inference_changes_nothing() -> None:
    model = SMALL.build()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    inference_step(model, replace(SMALL, mode="infer"), CPU)()
    assert not model.training
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_the_matrix_share_counts_products_only() -> None:
    cost = count(create_model("t2t_vit_7", image_size=32))
    products = cost.macs - cost.items["normalisation"] - cost.items["scales"]
    assert case_flops(replace(SMALL, mode="infer")) == 2 * products
    assert case_flops(SMALL) == 6 * products


def test_rows_say_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("t2t.lab.bench.measure.matrix_rate", lambda *_: 1e9)
    cases = [replace(SMALL, mode="infer"), replace(SMALL, depth=2)]
    infer, deep = (
        measured.row for measured in measure_cases(cases, CPU, "it", seconds=0.01)
    )
    named = {"model", "mode", "image_size", "batch", "precision", "source"}
    assert {*named, "images_per_second", "peak_memory_gib", "torch", "gpu"} <= {*infer}
    assert infer["mode"] == "infer"
    assert (infer["source"], infer["command"]) == ("synthetic", "it")
    assert "depth" not in infer
    assert (deep["mode"], deep["depth"]) == ("train", 2)
    for case, row in zip(cases, (infer, deep), strict=True):
        rate = 1e3 * row["batch"] / row["milliseconds"]
        assert row["images_per_second"] == pytest.approx(rate, rel=1e-2, abs=0.06)
        assert row["matrix_tflops"] == 0
        share = rate * case_flops(case) / 1e9
        assert row["matrix_share"] == pytest.approx(share, rel=1e-2)


def test_a_case_that_fails_says_why_and_stops_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def training_step(model: nn.Module, case: Case, device: torch.device) -> None:
        if case.batch == 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        raise RuntimeError("no such kernel\nand much more")

    monkeypatch.setitem(measuring.STEPS, "train", training_step)
    cases = [
        replace(SMALL, batch=3),
        replace(SMALL, batch=4),
        replace(SMALL, mode="infer"),
    ]
    rows = [m.row for m in measure_cases(cases, CPU, "it", seconds=0.01)]
    assert [row.get("failed") for row in rows] == [
        "out of memory",
        "RuntimeError: no such kernel",
        None,
    ]
    assert [row["images_per_second"] is None for row in rows] == [True, True, False]


def test_every_combination_is_measured_once_models_side_by_side() -> None:
    cases = all_cases(["a", "b"], ["train", "infer"], [96, 224], [8], ["fp32"], "eager")
    assert len(set(cases)) == len(cases) == 8
    assert [case.model for case in cases] == ["a", "b"] * 4


def test_only_stacks_of_equal_blocks_have_a_depth_to_change() -> None:
    assert default_depth("t2t_vit_14") == 14
    for name in ("t2t_vit_dense", "deit_small_patch16_224"):
        with pytest.raises(UserError, match="depth"):
            default_depth(name)


def test_timing_takes_the_middle_of_its_rounds() -> None:
    timing = Timing((1.0, 4.0, 2.0, 2.0, 3.0))
    assert timing.seconds == 2
    assert timing.spread == 0.75
    calls = []
    assert len(time_steps(lambda: calls.append(1), CPU, 1e-9).rounds) == 5
    assert len(calls) == 6


def test_a_round_has_as_many_steps_as_its_time_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    calls = []

    def step() -> None:
        calls.append(1)
        now[0] += 0.125 if len(calls) > 1 else 0.25

    monkeypatch.setattr("t2t.lab.bench.timing.time.perf_counter", lambda: now[0])
    timing = time_steps(step, CPU, 5.0)
    # The first took a quarter of a second, so four fill a round of one second.
    assert len(calls) == 1 + 5 * 4
    assert timing.rounds == (0.125,) * 5


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_matrix_rate_is_of_a_product_in_that_precision(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def timed(step: Callable[[], torch.Tensor], *_: object) -> Timing:
        product = step()
        assert product.shape == (1024, 1024)
        assert product.dtype == PRECISIONS[precision]
        return Timing((0.5,) * 5)

    monkeypatch.setattr("t2t.lab.bench.timing.time_steps", timed)
    assert matrix_rate.__wrapped__(CPU, precision) == 2 * 1024**3 / 0.5


@pytest.mark.parametrize("make", [training_step, inference_step])
def test_a_step_is_computed_in_the_precision_of_its_case(
    make: Callable[..., Callable[[], None]],
) -> None:
    case = replace(SMALL, precision="bf16")
    model = case.build()
    seen = []

    def look(module: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        seen.append((given[0].dtype, torch.is_autocast_enabled("cpu")))

    model.register_forward_pre_hook(look)
    make(model, case, CPU)()
    assert seen == [(torch.bfloat16, True)]


def test_the_peak_of_memory_is_seen_after_it_is_over() -> None:
    peak = PeakMemory(CPU)
    if peak.gib() is None:
        pytest.skip("this system does not tell")
    torch.ones(2**26)
    torch.ones(2)
    gib = peak.gib()
    assert gib is not None
    assert 0.2 < gib < 0.4
    peak.reset()
    assert (peak.gib() or 0) < 0.1


def test_the_device_is_busy_where_any_kernel_runs() -> None:
    assert busy_share([]) is None
    assert busy_share([(0, 4), (1, 2), (3, 5), (8, 10)]) == 0.7


def test_kernels_are_named_longest_first() -> None:
    kernels = longest_kernels([("a", 10), ("b", 50), ("a", 30)], num_steps=2)
    assert [kernel.name for kernel in kernels] == ["b", "a"]
    assert kernels[1].milliseconds == 0.02
    assert kernels[1].share == pytest.approx(4 / 9)
    assert kernels[1].calls == 1


def test_a_profile_on_a_cpu_names_operators() -> None:
    left = torch.randn(64, 64)
    profile = profile_steps(lambda: left @ left, CPU, num_steps=3)
    assert profile.busy_share is None
    (product,) = [kernel for kernel in profile.kernels if kernel.name == "aten::mm"]
    assert product.calls == 1
