"""A process group of one takes the steps of many processes."""

from collections.abc import Callable, Iterator
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
from t2t.training.distributed import World, init_distributed
from t2t.training.forecast.random_batch import random_batch
from t2t.training.initial_state import new_state
from t2t.training.recipe import OptimizerConfig, Recipe
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


@pytest.mark.parametrize("parallelism", ["ddp", "fsdp"])
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


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["adamw", "sgd", "muon"])
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_captured_group_trains_in_the_same_bits(
    name: str, precision: Any, tiny: Tiny
) -> None:
    recipe = tiny(random=True, optimizer=OptimizerConfig(name=name, lr=1e-2))
    args = {**recipe.model_args, "dim": 128, "token_dim": 64}
    recipe = replace(recipe, model_args=args)
    runtime = Runtime(device="cuda", precision=precision)
    make_deterministic(runtime)
    num_steps = NUM_DDP_WARMUPS + 4
    found = {}
    for kind in ("single", "captured", "uncaptured"):
        with init_distributed("cuda", group_of_one=kind != "single") as world:
            one = stepper(recipe, runtime, world)
            one.forward_backward.is_strict = True
            if kind == "uncaptured":
                one.captures = False
                one.set_phase(one.phase)
            losses = [
                one.train_step(batch_for(one, number)).loss
                for number in range(num_steps)
            ]
            assert one.captured is not None
            is_captured = one.captured.graph is not None
            assert is_captured == (kind != "uncaptured")
            found[kind] = (losses, tensors(one))
    for kind in ("captured", "uncaptured"):
        assert found[kind][0] == found["single"][0]
        for key, wanted in found["single"][1].items():
            assert torch.equal(found[kind][1][key], wanted), (kind, key)


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["adamw", "muon"])
@pytest.mark.parametrize("kept_bytes", [sharding.KEPT_BYTES, 0])
def test_shards_are_captured_in_the_same_bits(
    kept_bytes: int, name: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharding, "KEPT_BYTES", kept_bytes)
    recipe = tiny(random=True, optimizer=OptimizerConfig(name=name, lr=1e-2))
    args = {**recipe.model_args, "dim": 128, "token_dim": 64}
    recipe = replace(recipe, model_args=args)
    runtime = Runtime(device="cuda", parallelism="fsdp", compile="off")
    make_deterministic(runtime)
    found = []
    for captures in (False, True):
        with init_distributed("cuda", group_of_one=True) as world:
            one = stepper(recipe, runtime, world)
            one.forward_backward.is_strict, one.captures = True, captures
            one.set_phase(one.phase)
            losses = []
            for number in range(NUM_DDP_WARMUPS + 4):
                losses.append(one.train_step(batch_for(one, number)).loss)
                # As in an evaluation between replays.
                images = torch.ones(2, 3, 8, 8, device="cuda")
                model = one.state.final_model.eval()
                with torch.no_grad(), unsharded(model):
                    losses.append(model(images).sum().item())
            assert one.captured is not None
            assert (one.captured.graph is not None) == captures
            found.append((losses, tensors(one)))
    assert found[0][0] == found[1][0]
    for key, wanted in found[0][1].items():
        assert torch.equal(found[1][1][key], wanted), key


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
