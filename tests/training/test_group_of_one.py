"""A process group of one takes the steps of many processes."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
import torch
from captured_steps import fused, step_without_the_host
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from t2t.data.sampler import Batch
from t2t.models.shards import is_sharded
from t2t.training import sharding
from t2t.training import step as step_module
from t2t.training.distributed import World, init_distributed
from t2t.training.forecast.random_batch import random_batch
from t2t.training.initial_state import new_state
from t2t.training.recipe import OptimizerConfig, Recipe, TokenDropping
from t2t.training.runtime import Runtime, make_deterministic, resolve_runtime
from t2t.training.sharding import unsharded
from t2t.training.step import NUM_DDP_WARMUPS, Stepper
from t2t.training.step_result import Requests

Tiny = Callable[..., Recipe]


@pytest.fixture
def world() -> Iterator[World]:
    """A group of one over gloo."""
    with init_distributed("cpu", group_of_one=True) as world:
        yield world


def stepper(recipe: Recipe, runtime: Runtime, world: World) -> Stepper:
    runtime = resolve_runtime(runtime, world)
    return Stepper(recipe, runtime, world, new_state(recipe, runtime, world, 3))


def batch_for(one: Stepper, number: int = 0) -> Batch:
    torch.manual_seed(number)
    recipe = one.recipe
    task, device = one.state.task, one.world.device
    return random_batch(recipe, recipe.batch_size, task, device)


def tensors(one: Stepper) -> dict[str, Tensor]:
    """All that a checkpoint holds, unsharded."""
    found = {}
    for name, tensor in one.state.snapshot().tensors.items():
        whole = getattr(tensor, "full_tensor", None)
        found[name] = (tensor if whole is None else whole()).detach().clone()
    return found


def wide(recipe: Recipe) -> Recipe:
    """With widths that the fused operations take."""
    args = {**recipe.model_args, "dim": 128, "token_dim": 64}
    return replace(recipe, model_args=args)


def scored(one: Stepper) -> list[float]:
    """What an evaluation computes: the raw model and the EMA gather their weights."""
    task, models = one.state.task, (one.state.model, one.state.final_model)
    images = torch.ones(2, 3, 8, 8, device=one.world.device)
    with torch.no_grad(), ExitStack() as stack:
        for module in (task, *models):
            stack.enter_context(unsharded(module.eval()))
        return [model(images).sum().item() for model in models]


def has_graph(one: Stepper) -> bool:
    """Whether the step, or its gradient, has been captured."""
    return getattr(one.captured or one.gradient, "graph", None) is not None


@pytest.fixture
def capture(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Sets whether steps are CUDA graphs."""

    def choose(captures: bool) -> None:
        monkeypatch.setattr(step_module, "captures_steps", lambda *_: captures)

    return choose


def test_a_group_of_one_has_many_processes_code(world: World, tiny: Tiny) -> None:
    assert (world.size, world.is_distributed) == (1, True)
    ddp, fsdp = (
        stepper(tiny(), Runtime(device="cpu", parallelism=each), world)  # type: ignore[arg-type]
        for each in ("ddp", "fsdp")
    )
    assert isinstance(ddp.state.trained, DistributedDataParallel)
    assert is_sharded(fsdp.state.trained)


def test_without_a_group_nothing_is_distributed() -> None:
    with init_distributed("cpu") as world:
        assert not world.is_distributed
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize("parallelism", ["ddp", "fsdp"])
@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_a_group_of_one_trains_as_a_process_without_one(
    parallelism: Any, name: str, world: World, tiny: Tiny
) -> None:
    recipe = tiny(random=True, optimizer=OptimizerConfig(name=name, lr=1e-2))
    alone = World(0, 1, torch.device("cpu"))
    one = stepper(recipe, Runtime(device="cpu"), alone)
    other = stepper(recipe, Runtime(device="cpu", parallelism=parallelism), world)
    for number in range(3):
        batch = batch_for(one, number)
        ours, theirs = (each.train_step(batch) for each in (other, one))
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)
    wanted = tensors(one)
    for key, found in tensors(other).items():
        torch.testing.assert_close(found, wanted[key], rtol=1e-4, atol=1e-5, msg=key)


@pytest.mark.parametrize("parallelism", ["ddp", "fsdp", "hybrid"])
@pytest.mark.parametrize("name", ["adamw", "muon"])
@pytest.mark.parametrize("is_broken", [False, True])
def test_the_step_that_the_device_decides_on_is_the_same(
    parallelism: Any, name: str, is_broken: bool, world: World, tiny: Tiny
) -> None:
    recipe = tiny(random=True, optimizer=OptimizerConfig(name=name, lr=1e-2))
    runtime = Runtime(device="cpu", parallelism=parallelism)
    one, other = (fused(stepper(recipe, runtime, world)) for _ in range(2))
    first, second = batch_for(one, 1), batch_for(one, 2)
    for each in (one, other):
        each.train_step(first)
        if is_broken:
            plain = each.forward_backward.forward
            each.forward_backward.forward = lambda views, plain=plain: {
                name: value * torch.nan for name, value in plain(views).items()
            }
    before = tensors(other)
    one.train_step(second)
    found = step_without_the_host(other, second)
    assert found[2:4].tolist() == [0, 1]  # the request to save a checkpoint
    for key, value in tensors(other).items():
        wanted = before[key] if is_broken else tensors(one)[key]
        torch.testing.assert_close(value, wanted, rtol=1e-5, atol=1e-6, msg=key)


def test_requests_travel_with_a_step(world: World, tiny: Tiny) -> None:
    one = stepper(tiny(), Runtime(device="cpu"), world)
    batch = batch_for(one)
    assert one.train_step(batch).requests == Requests()
    for requests in (Requests(stop=True), Requests(save=True)):
        assert one.start_step(batch, 0.0, requests).result().requests == requests
    assert Requests(stop=True) | Requests(save=True) == Requests(True, True)


@pytest.mark.parametrize("parallelism", ["ddp", "fsdp"])
def test_the_log_says_how_steps_run(parallelism: Any, world: World, tiny: Tiny) -> None:
    runtime = Runtime(device="cpu", parallelism=parallelism)
    one = stepper(tiny(), runtime, world)
    one.runtime = replace(one.runtime, precision="fp16")
    alone = "Steps are launched kernel by kernel: "
    assert one.launch == f"{alone}the loss scale of fp16 needs the host."
    # As on a GPU.
    one.world = replace(world, device=torch.device("cuda"))
    one.uses_graphs = True
    one.runtime = replace(one.runtime, precision="bf16")
    assert one.launch == "A gradient is one CUDA graph; the step of AdamW follows it."
    one.captured = object()  # type: ignore[assignment]
    assert one.launch == "A step is one CUDA graph."
    one.forward_backward.compiled = True
    expected = f"{alone}they are compiled and sharded."
    assert (one.launch == expected) == (parallelism == "fsdp")


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["adamw", "sgd", "muon"])
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_captured_group_trains_in_the_same_bits(
    name: str, precision: Any, tiny: Tiny, capture: Callable[[bool], None]
) -> None:
    recipe = wide(tiny(random=True, optimizer=OptimizerConfig(name=name, lr=1e-2)))
    runtime = Runtime(device="cuda", precision=precision)
    make_deterministic(runtime)
    num_steps = NUM_DDP_WARMUPS + 4
    found = {}
    for kind in ("single", "captured", "uncaptured"):
        capture(kind != "uncaptured")
        with init_distributed("cuda", group_of_one=kind != "single") as world:
            one = stepper(recipe, runtime, world)
            one.forward_backward.is_strict = True
            losses = [
                one.train_step(batch_for(one, number)).loss
                for number in range(num_steps)
            ]
            assert one.captured is not None
            assert has_graph(one) == (kind != "uncaptured")
            found[kind] = (losses, tensors(one))
    for kind in ("captured", "uncaptured"):
        assert found[kind][0] == found["single"][0]
        for key, wanted in found["single"][1].items():
            assert torch.equal(found[kind][1][key], wanted), (kind, key)


@pytest.mark.cuda
@pytest.mark.parametrize("micro_batch", [None, 8])
@pytest.mark.parametrize("name", ["adamw", "muon"])
@pytest.mark.parametrize("kept_bytes", [sharding.KEPT_BYTES, 0])
@pytest.mark.parametrize("parallelism", ["fsdp", "hybrid"])
def test_shards_are_captured_in_the_same_bits(
    parallelism: Any,
    kept_bytes: int,
    name: str,
    micro_batch: int | None,
    tiny: Tiny,
    capture: Callable[[bool], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over phases, with evaluations and checkpoints between the replays."""
    monkeypatch.setattr(sharding, "KEPT_BYTES", kept_bytes)
    recipe = wide(
        tiny(
            random=True,
            optimizer=OptimizerConfig(name=name, lr=1e-2),
            token_dropping=TokenDropping(keep=0.5, until=0.5),
            light_augment_share=0.25,
        )
    )
    runtime = Runtime(
        device="cuda", parallelism=parallelism, compile="off", micro_batch=micro_batch
    )
    make_deterministic(runtime)
    found = []
    for captures in (False, True):
        capture(captures)
        with init_distributed("cuda", group_of_one=True) as world:
            one = stepper(recipe, runtime, world)
            one.forward_backward.is_strict = True
            seen, saved = [], []
            for phase in recipe.phases():
                one.set_phase(phase)
                for _ in range(max(4, NUM_DDP_WARMUPS + 4 - one.num_started)):
                    seen.append(one.train_step(batch_for(one, one.num_started)).loss)
                    seen += scored(one) if one.num_started % 2 else []
                assert has_graph(one) == captures
                saved.append(tensors(one))
            found.append((seen, saved))
    assert len(found[0][1]) == 3  # phases
    assert found[0][0] == found[1][0]
    for wanted, other in zip(found[0][1], found[1][1], strict=True):
        for key, value in wanted.items():
            assert torch.equal(other[key], value), key


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["lamb", "lion"])
@pytest.mark.parametrize("parallelism", ["ddp", "fsdp"])
def test_the_gradient_of_other_optimizers_is_captured(
    parallelism: Any, name: str, tiny: Tiny, capture: Callable[[bool], None]
) -> None:
    recipe = wide(tiny(random=True, optimizer=OptimizerConfig(name=name, lr=1e-3)))
    runtime = Runtime(device="cuda", parallelism=parallelism, compile="off")
    make_deterministic(runtime)
    found = []
    for captures in (False, True):
        capture(captures)
        with init_distributed("cuda", group_of_one=True) as world:
            one = stepper(recipe, runtime, world)
            one.forward_backward.is_strict = True
            losses = [
                one.train_step(batch_for(one, number)).loss
                for number in range(NUM_DDP_WARMUPS + 4)
            ]
            assert one.captured is None
            assert has_graph(one) == captures
            found.append((losses, tensors(one)))
    assert found[0][0] == found[1][0]
    for key, wanted in found[0][1].items():
        assert torch.equal(found[1][1][key], wanted), key


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["adamw", "muon"])
@pytest.mark.parametrize("parallelism", ["ddp", "fsdp", "hybrid"])
def test_a_replayed_step_that_is_not_finite_changes_nothing(
    parallelism: Any, name: str, tiny: Tiny
) -> None:
    recipe = wide(tiny(random=True, optimizer=OptimizerConfig(name=name, lr=1e-2)))
    runtime = Runtime(device="cuda", parallelism=parallelism, compile="off")
    with init_distributed("cuda", group_of_one=True) as world:
        one = stepper(recipe, runtime, world)
        factor = torch.ones((), device="cuda")
        plain = one.forward_backward.forward
        one.forward_backward.forward = lambda views: {
            name: value * factor for name, value in plain(views).items()
        }
        for number in range(NUM_DDP_WARMUPS + 2):
            assert one.train_step(batch_for(one, number)).applied
        assert has_graph(one)
        before = tensors(one)
        for value in (torch.nan, torch.inf):
            factor.fill_(value)
            assert not one.train_step(batch_for(one)).applied
            after = tensors(one)
            for key, wanted in before.items():
                assert torch.equal(after[key], wanted), key
        factor.fill_(1)
        assert one.train_step(batch_for(one)).applied
        after = tensors(one)
        assert not all(torch.equal(after[key], before[key]) for key in before)


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["adamw", "muon"])
@pytest.mark.parametrize("parallelism", ["fsdp", "hybrid"])
def test_captured_shards_repeat_bit_for_bit_from_any_step(
    parallelism: Any, name: str, tiny: Tiny
) -> None:
    """A resumed process launches its first steps normally, where the other replays."""
    recipe = wide(tiny(random=True, optimizer=OptimizerConfig(name=name, lr=1e-2)))
    runtime = Runtime(device="cuda", parallelism=parallelism, compile="off")
    make_deterministic(runtime)
    middle, last = NUM_DDP_WARMUPS + 3, 2 * NUM_DDP_WARMUPS + 6
    with init_distributed("cuda", group_of_one=True) as world:
        whole, resumed = (stepper(recipe, runtime, world) for _ in range(2))
        for one in (whole, resumed):
            one.forward_backward.is_strict = True
        for number in range(middle):
            whole.train_step(batch_for(whole, number))
        state = whole.state.snapshot()
        copied = {key: each.clone() for key, each in state.tensors.items()}
        with torch.no_grad():
            for key, own in resumed.state.weights().items():
                own.copy_(copied[key])
        resumed.state.restore(state._replace(tensors=copied))
        for one in (whole, resumed):
            for number in range(middle, last):
                one.train_step(batch_for(one, number))
            assert has_graph(one)
        wanted = tensors(whole)
        for key, value in tensors(resumed).items():
            assert torch.equal(value, wanted[key]), key


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.filterwarnings("ignore:cuDNN Attention defaults to a non-deterministic")
@pytest.mark.parametrize("parallelism", ["ddp", "fsdp"])
def test_the_host_waits_for_no_step(parallelism: Any, tiny: Tiny) -> None:
    with init_distributed("cuda", group_of_one=True) as world:
        runtime = Runtime(device="cuda", parallelism=parallelism, compile="off")
        one = stepper(tiny(random=True), runtime, world)
        batch = batch_for(one)
        for _ in range(NUM_DDP_WARMUPS + 2):
            one.train_step(batch)
        torch.cuda.synchronize()
        try:
            torch.cuda.set_sync_debug_mode("error")
            pending = [one.start_step(batch) for _ in range(3)]
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert all(each.result().applied for each in pending)
