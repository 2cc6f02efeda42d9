"""One step: accumulated, clipped, averaged, or left out whole."""

import copy
import itertools
import json
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from captured_steps import fused, step_without_the_host
from torch import Tensor

from t2t.commands.train_summary import train_summary
from t2t.data.augment.config import Augmentation
from t2t.data.batches import Batches, LoaderOptions, open_batches
from t2t.data.sampler import Batch
from t2t.data.sources import open_splits
from t2t.errors import UserError
from t2t.tasks.base import Numbers, Views
from t2t.training import step as step_module
from t2t.training.distributed import World, batch_norm_buffers
from t2t.training.forward_backward import check_all_used, step_seed
from t2t.training.initial_state import new_state
from t2t.training.logging.metrics import read_rows
from t2t.training.recipe import EMA, OptimizerConfig, Recipe, TokenDropping
from t2t.training.runtime import (
    Runtime,
    deterministic,
    make_deterministic,
    resolve_runtime,
)
from t2t.training.step import Stepper
from t2t.training.train import train

Tiny = Callable[..., Recipe]
ALONE = World(0, 1, torch.device("cpu"))


@pytest.fixture
def batches(images: Path) -> Batches:
    return open_batches(
        open_splits(str(images)).train,
        batch_size=16,
        crops=(),
        device="cpu",
        loader_options=LoaderOptions(num_workers=1),
    )


def stepper(recipe: Recipe, runtime: Runtime) -> Stepper:
    runtime = resolve_runtime(runtime, ALONE)
    return Stepper(recipe, runtime, ALONE, new_state(recipe, runtime, ALONE, 3))


@pytest.mark.parametrize("size", [1, 5, 8])
def test_accumulated_step_is_the_whole_step(
    size: int, tiny: Tiny, cpu: Runtime, batches: Batches
) -> None:
    recipe = tiny(optimizer=OptimizerConfig(lr=1e-2, clip_norm=0.1))
    whole = stepper(recipe, cpu)
    parts = stepper(recipe, replace(cpu, micro_batch=size))
    for batch in batches.steps(0, 3):
        expected, found = whole.train_step(batch), parts.train_step(batch)
        assert found.loss == pytest.approx(expected.loss, rel=1e-5)
        assert found.gradient_norm == pytest.approx(expected.gradient_norm, rel=1e-3)
    for ours, theirs in zip(
        parts.state.model.parameters(), whole.state.model.parameters(), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-4)


def test_float32_is_exact_also_after_half_precision() -> None:
    for precision, expected in (("bf16", "high"), ("fp32", "highest")):
        make_deterministic(Runtime(precision=precision))  # type: ignore[arg-type]
        assert torch.get_float32_matmul_precision() == expected


def test_step_is_a_function_of_the_seed_and_the_batch(
    tiny: Tiny, cpu: Runtime, batches: Batches
) -> None:
    recipe = tiny(random=True)
    (batch,) = batches.steps(0, 1)
    torch.manual_seed(1)
    first = stepper(recipe, cpu).train_step(batch)
    torch.manual_seed(2)
    assert stepper(recipe, cpu).train_step(batch) == first
    assert stepper(replace(recipe, seed=1), cpu).train_step(batch) != first


def test_every_step_of_every_process_draws_its_own() -> None:
    places = itertools.product(range(3), range(5), range(4))  # seed, step, rank
    assert len({step_seed(*run_folder) for run_folder in places}) == 60


def test_average_follows_the_weights_and_starts_close(
    tiny: Tiny, cpu: Runtime, batches: Batches
) -> None:
    recipe = tiny(ema=EMA(decay=0.9))
    one = stepper(recipe, cpu)
    assert one.state.ema is not None
    kept = [p.detach().clone() for p in one.state.ema.parameters()]
    for number, batch in enumerate(batches.steps(0, 3), start=1):
        one.train_step(batch)
        decay = min(0.9, (1 + number) / (10 + number))
        now = list(one.state.model.parameters())
        kept = [decay * a + (1 - decay) * b for a, b in zip(kept, now, strict=True)]
        for ours, theirs in zip(one.state.ema.parameters(), kept, strict=True):
            torch.testing.assert_close(ours, theirs.detach(), rtol=1e-5, atol=1e-6)


def test_average_takes_the_batch_statistics_as_they_are(
    tiny: Tiny, cpu: Runtime, batches: Batches
) -> None:
    one = stepper(tiny(model="test_resnet", model_args={}), cpu)
    assert one.state.ema is not None
    kept = batch_norm_buffers(one.state.ema)
    before = [buffer.clone() for buffer in kept]
    (batch,) = batches.steps(0, 1)
    one.train_step(batch)
    for own, raw, old in zip(
        kept, one.forward_backward.statistics, before, strict=True
    ):
        assert torch.equal(own, raw)
        assert not torch.equal(own, old)


class Broken:
    """A task whose loss or gradient is not finite at chosen calls."""

    def __init__(self, task: Any, kind: str, at: set[int]) -> None:
        self.task, self.kind, self.at, self.num_calls = task, kind, at, 0

    def __call__(self, views: Views) -> Numbers:
        self.num_calls += 1
        if self.num_calls not in self.at:
            return self.task(views)
        if self.kind == "image":
            return self.task({**views, "images": views["images"] * float("nan")})
        loss = self.task(views)["loss"]
        if self.kind == "loss":
            return {"loss": loss + float("inf")}
        # The gradient of this root at 0 is infinite, while its value is finite.
        first = next(iter(self.task.parameters()))
        return {"loss": loss + (first.sum() * 0).sqrt()}


def snapshot(one: Stepper) -> dict[str, Any]:
    state = one.state.snapshot()
    numbers = copy.deepcopy(state.numbers)
    for counter in ("step", "num_skipped", "num_skipped_in_a_row", "scaler"):
        numbers.pop(counter)
    return {**{k: v.clone() for k, v in state.tensors.items()}, "numbers": numbers}


@pytest.mark.parametrize("kind", ["image", "loss", "gradient"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("model", ["t2t", "resnet"])
def test_step_that_is_not_finite_changes_nothing(
    kind: str, precision: Any, model: str, tiny: Tiny, cpu: Runtime, batches: Batches
) -> None:
    recipe = tiny(random=True, optimizer=OptimizerConfig(name="muon", lr=1e-2))
    if model == "resnet":  # whose batch norms remember every forward pass
        recipe = tiny(model="test_resnet", model_args={})
    one = stepper(recipe, replace(cpu, precision=precision))
    one.forward_backward.forward = Broken(one.forward_backward.forward, kind, {2, 3})
    first, second, third, fourth = batches.steps(0, 4)
    assert one.train_step(first).applied
    before = snapshot(one)
    scale = one.state.scaler.get_scale()
    for number, batch in enumerate((second, third), start=1):
        assert not one.train_step(batch).applied
        assert one.state.num_skipped == number
    after = snapshot(one)
    assert before.pop("numbers") == after.pop("numbers")
    assert all(torch.equal(after[name], before[name]) for name in before)
    if precision == "fp16" and kind != "loss":
        assert one.state.scaler.get_scale() == scale / 4
    assert one.train_step(fourth).applied, "nothing of the broken gradients is left"
    assert one.state.step == 4


@pytest.fixture
def broken_training(monkeypatch: pytest.MonkeyPatch) -> Callable[[set[int]], None]:
    """Lets the gradients of chosen steps of the next run be not finite."""

    def at(steps: set[int]) -> None:
        plain = Stepper.__init__

        def init(one: Stepper, *arguments: Any) -> None:
            plain(one, *arguments)
            one.forward_backward.forward = Broken(
                one.forward_backward.forward, "image", steps
            )

        monkeypatch.setattr(Stepper, "__init__", init)

    return at


def test_gradients_that_are_not_finite_are_counted_and_reported(
    tiny: Tiny,
    cpu: Runtime,
    tmp_path: Path,
    broken_training: Callable[[set[int]], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    broken_training({2, 3, 5, 6, 7, 9})  # more than end a run that is broken in a row
    result = train(tiny(), folder=tmp_path / "run", runtime=cpu)
    assert result.finished
    assert result.summary["skipped_steps"] == 6
    reported = capsys.readouterr().out
    assert reported.count("skipped") == 2
    assert "Step 2 was skipped: its gradient is not finite." in reported
    assert (
        "was skipped because its gradient was not finite, 6 times in all." in reported
    )


def test_a_first_step_that_is_skipped_has_no_loss(
    tiny: Tiny,
    cpu: Runtime,
    tmp_path: Path,
    broken_training: Callable[[set[int]], None],
) -> None:
    broken_training({1})
    result = train(tiny(epochs=1), folder=tmp_path / "run", runtime=cpu, quiet=True)
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert rows[0]["loss"] is None
    assert rows[-1]["val_loss"] > 0
    train_summary(tmp_path / "run", result.summary)


def test_run_that_stopped_learning_ends_with_advice(
    tiny: Tiny,
    cpu: Runtime,
    tmp_path: Path,
    broken_training: Callable[[set[int]], None],
) -> None:
    broken_training(set(range(7, 13)))
    with pytest.raises(UserError, match="5 steps in a row") as caught:
        train(tiny(), folder=tmp_path / "run", runtime=cpu, quiet=True)
    assert "optimizer.lr" in str(caught.value)
    assert "step 11" in str(caught.value)
    assert "The checkpoint of step 6 is kept in" in str(caught.value)
    assert (tmp_path / "run/log.txt").read_text().endswith(f"{caught.value}\n")
    assert [path.name for path in (tmp_path / "run/last").iterdir()] == [
        "step-000000006"
    ]


def test_a_short_run_without_a_single_step_is_an_error(
    tiny: Tiny,
    cpu: Runtime,
    tmp_path: Path,
    broken_training: Callable[[set[int]], None],
) -> None:
    broken_training({1, 2, 3})
    with pytest.raises(UserError, match=r"not finite 3 steps in a row \(step 3\)"):
        train(tiny(epochs=1), folder=tmp_path / "run", runtime=cpu, quiet=True)
    assert not (tmp_path / "run/model.safetensors").exists()


def test_raw_and_averaged_accuracy_are_both_reported(
    tiny: Tiny, cpu: Runtime, tmp_path: Path
) -> None:
    slow = EMA(decay=0.999999, warmup=False)  # the average stays where it began
    result = train(tiny(ema=slow), folder=tmp_path / "run", runtime=cpu, quiet=True)
    rows = [row for row in read_rows(tmp_path / "run/metrics.jsonl") if "top1" in row]
    assert [row["epoch"] for row in rows] == [2, 4]
    assert rows[-1]["top1_raw"] > rows[-1]["top1"]
    assert result.summary["top1"] == rows[-1]["top1"]
    assert result.summary["top1_raw"] == rows[-1]["top1_raw"]
    assert rows[-1]["num_images"] == 13
    without = train(
        tiny(ema=EMA(decay=0)), folder=tmp_path / "raw", runtime=cpu, quiet=True
    )
    assert without.summary["top1"] == without.summary["top1_raw"]


@pytest.mark.parametrize(
    ("precision", "enabled"), [("fp32", False), ("bf16", False), ("fp16", True)]
)
def test_only_fp16_scales_the_loss(
    precision: Any, enabled: bool, tiny: Tiny, cpu: Runtime
) -> None:
    one = stepper(tiny(), replace(cpu, precision=precision))
    assert one.state.scaler.is_enabled() == enabled


def test_steps_follow_the_phases_of_the_recipe(
    tiny: Tiny, cpu: Runtime, tmp_path: Path
) -> None:
    token_dropping = TokenDropping(keep=0.5, until=0.5)
    recipe = tiny(
        epochs=4, token_dropping=token_dropping, light_augment_share=0.25, random=True
    )
    seen: list[tuple[float, bool]] = []
    plain = step_module.Stepper.find_gradient

    def noting(one: Stepper, *arguments: Any) -> Tensor:
        share = one.state.model.encoder.token_share  # type: ignore[union-attr]
        seen.append((share, one.augmentation.rand_augment is None))  # type: ignore[arg-type]
        return plain(one, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_module.Stepper, "find_gradient", noting)
        train(recipe, folder=tmp_path, runtime=cpu, quiet=True)
    assert seen == [(0.5, False)] * 6 + [(1.0, False)] * 3 + [(1.0, True)] * 3


def test_a_phase_of_light_augmentation_only_crops_and_flips(tiny: Tiny) -> None:
    recipe = tiny(random=True)
    light_augment = recipe.augmentation.light()
    left = Augmentation(crop_padding=1, flip=0.5, smoothing=0.1)
    assert light_augment == left
    with pytest.raises(UserError, match=r"light_augment_share=2\.0 must be from 0"):
        tiny(light_augment_share=2)


def test_models_without_tokens_refuse_to_drop_them(tiny: Tiny, cpu: Runtime) -> None:
    recipe = tiny(
        model="test_resnet", model_args={}, token_dropping=TokenDropping(keep=0.5)
    )
    with pytest.raises(UserError, match="has no tokens to drop"):
        stepper(recipe, cpu)


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("optimizer", "model_args"),
    [
        # Widths that the fused operations take.
        *((name, {"dim": 128, "token_dim": 64}) for name in ("muon", "adamw", "sgd")),
        # Torch's own attention.
        ("muon", {"dim": 32}),
        ("muon", {"dim": 32, "tokenizer": "t2t", "token_dropout": 0.0}),
        ("muon", {"dim": 128, "positions": "relative"}),
    ],
)
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_replayed_steps_repeat_bit_for_bit_from_any_step(
    optimizer: str, model_args: dict[str, Any], precision: Any, tiny: Tiny, images: Path
) -> None:
    world = World(0, 1, torch.device("cuda:0"))
    runtime = resolve_runtime(Runtime(precision=precision), world)
    make_deterministic(runtime)
    recipe = tiny(random=True, optimizer=OptimizerConfig(name=optimizer, lr=1e-2))
    recipe = replace(recipe, model_args={**recipe.model_args, **model_args})
    batches = open_batches(
        open_splits(str(images)).train, batch_size=16, crops=(), device="cuda:0"
    )

    def new_stepper() -> Stepper:
        return Stepper(recipe, runtime, world, new_state(recipe, runtime, world, 3))

    whole = new_stepper()
    for batch in batches.steps(0, 10):
        whole.train_step(batch)
    first, second = new_stepper(), new_stepper()
    for batch in batches.steps(0, 5):
        first.train_step(batch)
    state = first.state.snapshot()
    tensors = {name: tensor.clone() for name, tensor in state.tensors.items()}
    for name, own in second.state.weights().items():
        own.copy_(tensors[name])
    second.state.restore(state._replace(tensors=tensors))
    for batch in batches.steps(5, 10):
        second.train_step(batch)
    assert whole.captured is not None
    assert whole.captured.graph is not None
    for name, wanted in whole.state.snapshot().tensors.items():
        assert torch.equal(second.state.snapshot().tensors[name], wanted), name


@pytest.mark.parametrize("kind", ["fine", "image", "loss", "gradient"])
@pytest.mark.parametrize("model", ["t2t", "resnet"])
def test_a_step_without_the_host_is_the_same_step(
    kind: str, model: str, tiny: Tiny, cpu: Runtime, batches: Batches
) -> None:
    name = "adamw" if model == "resnet" else "muon"
    recipe = tiny(random=True, optimizer=OptimizerConfig(name=name, lr=1e-2))
    if model == "resnet":
        recipe = replace(recipe, model="test_resnet", model_args={}, drop_path=0.0)
    first, second = batches.steps(0, 2)
    states = []
    for alone in (False, True):
        one = fused(stepper(recipe, cpu))
        one.train_step(first)
        if kind != "fine":
            one.forward_backward.forward = Broken(
                one.forward_backward.forward, kind, {1}
            )
        before = snapshot(one)
        if alone:
            step_without_the_host(one, second)
        else:
            one.train_step(second)
        states.append(snapshot(one))
        assert states[-1].pop("numbers") == before.pop("numbers")
        same = all(torch.equal(states[-1][key], before[key]) for key in before)
        assert same == (kind != "fine")
    for key, wanted in states[0].items():
        torch.testing.assert_close(states[1][key], wanted, rtol=1e-5, atol=1e-6)


@pytest.fixture
def no_new_memory_is_zero() -> Iterator[None]:
    """New memory holds NaN until something is written to it."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("no_new_memory_is_zero")
@pytest.mark.parametrize("name", ["adamw", "muon", "sgd"])
def test_a_first_step_that_is_skipped_leaves_nothing_behind(
    name: str, tiny: Tiny, cpu: Runtime, batches: Batches
) -> None:
    recipe = tiny(optimizer=OptimizerConfig(name=name, lr=1e-2))
    first, second = batches.steps(0, 2)
    states = []
    for breaks in (False, True):
        one = fused(stepper(recipe, cpu))
        if breaks:
            one.forward_backward.forward = Broken(
                one.forward_backward.forward, "image", {1}
            )
            step_without_the_host(one, first)
        one.state.step = 1
        step_without_the_host(one, second)
        states.append(snapshot(one))
    assert states[0].pop("numbers") == states[1].pop("numbers")
    for key, wanted in states[0].items():
        assert torch.equal(states[1][key], wanted), key


@pytest.mark.parametrize("warns", [False, True])
@pytest.mark.usefixtures("no_new_memory_is_zero")
def test_torch_is_left_as_deterministic_as_it_was(warns: bool) -> None:
    torch.use_deterministic_algorithms(True, warn_only=warns)
    for strictly in (True, False):
        with deterministic(strictly):
            reported = torch.is_deterministic_algorithms_warn_only_enabled()
            assert reported != strictly
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.is_deterministic_algorithms_warn_only_enabled() == warns
    assert torch.utils.deterministic.fill_uninitialized_memory


@pytest.mark.filterwarnings("ignore:put_ does not have a deterministic")
@pytest.mark.parametrize("model", ["t2t", "resnet"])
def test_a_kernel_that_cannot_repeat_is_reported_and_taken(
    model: str, tiny: Tiny, cpu: Runtime, batches: Batches
) -> None:
    recipe = tiny(random=True)
    if model == "resnet":
        recipe = replace(recipe, model="test_resnet", model_args={}, drop_path=0.0)
    reported: list[str] = []
    plain, other = stepper(recipe, cpu), stepper(recipe, cpu)
    other.forward_backward.warn = reported.append
    task = other.forward_backward.forward

    def unordered(views: Views) -> Numbers:
        loss = task(views)["loss"]
        index, nothing = torch.tensor([1]), torch.zeros(1)
        return {"loss": loss + torch.zeros(2).put_(index, nothing).sum()}

    other.forward_backward.forward = unordered
    for batch in batches.steps(0, 2):
        assert other.train_step(batch) == plain.train_step(batch)
    assert [sentence.split(":")[0] for sentence in reported] == [
        "This run may differ in the last bits when repeated"
    ]
    assert "put_ does not have a deterministic implementation" in reported[0]
    states = snapshot(plain), snapshot(other)
    assert states[0].pop("numbers") == states[1].pop("numbers")
    for key, wanted in states[0].items():
        assert torch.equal(states[1][key], wanted), key


def test_other_errors_of_a_model_are_not_taken_for_that(
    tiny: Tiny, cpu: Runtime, batches: Batches
) -> None:
    one = stepper(tiny(), cpu)

    def broken(*given: object) -> Numbers:
        raise RuntimeError("shapes do not fit")

    one.forward_backward.forward = broken
    (batch,) = batches.steps(0, 1)
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        one.train_step(batch)


def test_batch_norms_of_one_value_are_reported(
    tiny: Tiny, cpu: Runtime, batches: Batches
) -> None:
    recipe = tiny(model="test_resnet", model_args={})
    one = stepper(recipe, replace(cpu, micro_batch=1))
    (batch,) = batches.steps(0, 1)
    small = batch._replace(views=(batch.images[:, :, :1, :1].contiguous(),))
    with pytest.raises(UserError, match="batch norms need more than 1 image at once"):
        one.train_step(small)
    plain = one.forward_backward.forward

    def other(views: Views) -> Numbers:
        raise ValueError("another mistake")

    one.forward_backward.forward = other
    with pytest.raises(ValueError, match="another mistake"):
        one.train_step(batch)
    one.forward_backward.forward = plain


def test_a_rehearsal_changes_nothing(
    tiny: Tiny, cpu: Runtime, batches: Batches
) -> None:
    (batch,) = batches.steps(0, 1)
    dropping = TokenDropping(keep=0.5, until=0.5)
    recipes = [
        tiny(random=True, token_dropping=dropping, light_augment_share=0.25),
        tiny(model="test_resnet", model_args={}),  # with batch norms
    ]
    for recipe in recipes:
        plain, rehearsed = stepper(recipe, cpu), stepper(recipe, cpu)
        before = snapshot(rehearsed)
        rehearsed.rehearse(batch, recipe.phases())
        after = snapshot(rehearsed)
        assert after.pop("numbers") == before.pop("numbers")
        assert all(torch.equal(after[name], before[name]) for name in before)
        assert rehearsed.phase == plain.phase
        assert rehearsed.train_step(batch) == plain.train_step(batch)


def test_a_stepper_closes_the_batches_it_loads(
    tiny: Tiny, cpu: Runtime, batches: Batches
) -> None:
    closed = []

    def counted() -> Generator[Batch]:
        try:
            yield from batches.steps(0, 5)
        finally:
            closed.append(True)

    loaded = stepper(tiny(), cpu).load(counted())
    next(loaded)
    assert not closed
    loaded.close()
    assert closed


def test_several_processes_need_all_weights(tiny: Tiny, cpu: Runtime) -> None:
    state = new_state(tiny(), cpu, ALONE, 3)
    for parameter in state.task.parameters():
        parameter.grad = torch.zeros_like(parameter)
    state.model.norm.weight.requires_grad_(False).grad = None  # type: ignore[union-attr]
    check_all_used(state.task)
    state.model.head.bias.grad = None  # type: ignore[union-attr]
    with pytest.raises(UserError, match=r"^model.head.bias of Classify have no part"):
        check_all_used(state.task)
