"""What FSDP's shards let a step do: fused blocks, and no operation on DTensors."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import Enum
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode

import t2t
from t2t.lab.rehearsal import fake_world
from t2t.models import blocks, encoders
from t2t.models.hooks import is_hooked
from t2t.models.shards import class_of, is_dtensor, is_sharded, num_copies
from t2t.training import sharding
from t2t.training.distributed import World, init_distributed
from t2t.training.forecast.random_batch import random_batch
from t2t.training.gradient_clipping import Gradient
from t2t.training.initial_state import new_state
from t2t.training.recipe import OptimizerConfig, Recipe
from t2t.training.runtime import Runtime, resolve_runtime
from t2t.training.sharding import shard, unsharded
from t2t.training.step import Stepper
from t2t.training.torch_optimizers import SGD, AdamW

Tiny = Callable[..., Recipe]
SMALL: dict[str, Any] = {
    "image_size": 32,
    "num_classes": 5,
    "depth": 3,
    "token_dropout": 0.0,
}


@pytest.fixture
def world() -> Iterator[World]:
    """A group of one over gloo."""
    with init_distributed("cpu", group_of_one=True) as world:
        yield world


@pytest.fixture(params=["small", "large"])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How a model is sharded: as a small one, or as a large one."""
    if request.param == "large":
        monkeypatch.setattr(sharding, "KEPT_BYTES", 0)
    return str(request.param)


CPU = Runtime(device="cpu", parallelism="fsdp", compile="off")


def stepper(recipe: Recipe, world: World, runtime: Runtime = CPU) -> Stepper:
    runtime = resolve_runtime(runtime, world)
    return Stepper(recipe, runtime, world, new_state(recipe, runtime, world, 3))


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if is_dtensor(tensor) else tensor


def same_models(**sizes: Any) -> tuple[Any, Any]:
    models = [t2t.create_model("t2t_vit_7", **SMALL, **sizes) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    return models[0], models[1]


class Counted(TorchDispatchMode):
    """Counts the operations on DTensors."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            self.names[str(func)] += 1
            return NotImplemented
        return func(*args, **(kwargs or {}))


def test_sharded_blocks_run_fused(
    size: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def noting(name: str, function: Any) -> Any:
        return lambda *given: ran.append(name) or function(*given)

    for module, name in ((encoders, "block_stack"), (blocks, "one_block")):
        monkeypatch.setattr(module, name, noting(name, getattr(module, name)))
        monkeypatch.setattr(module, "is_fused", lambda x: True)
    one, other = same_models()
    shard(other, "fsdp", world)
    images = torch.randn(4, 3, 32, 32)
    for model in (one, other):
        model(images).square().sum().backward()
    expected = ["block_stack"] if size == "small" else ["one_block"] * 3
    assert ran == ["block_stack", *expected]
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(whole(theirs.grad), mine.grad, rtol=1e-4, atol=1e-5)


def test_few_dropped_samples_are_left_to_the_plain_path_by_all_blocks_or_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blocks, "is_fused", lambda x: True)
    encoder = t2t.create_model("t2t_vit_7", **SMALL, drop_path=0.5).encoder.train()
    for num_images, expected in ((8, [True] * 3), (2, [True, False, False])):
        tokens = torch.randn(num_images, 5, encoder.out_dim)
        fused = [block.fused(tokens) is not None for block in encoder.blocks]
        assert fused == expected  # the first block drops none


def test_only_hooks_of_others_count(size: str, world: World) -> None:
    model = t2t.create_model("t2t_vit_7", **SMALL)
    shard(model, "fsdp", world)
    part = model.encoder if size == "small" else model.encoder.blocks[0]
    assert is_sharded(part)
    assert class_of(part) in (encoders.Encoder, blocks.Block)
    assert class_of(nn.Linear(1, 1)) is nn.Linear
    assert not is_hooked(part)
    part.register_forward_hook(lambda *_: None)
    assert is_hooked(part)


def test_weights_that_have_changed_are_gathered_again(size: str, world: World) -> None:
    one, other = same_models()
    shard(other, "fsdp", world)
    images = torch.randn(2, 3, 32, 32)
    for _ in range(2):
        with torch.no_grad():
            with unsharded(other):
                found = other(images)
            torch.testing.assert_close(found, one(images), rtol=1e-5, atol=1e-6)
            for model in (one, other):
                for weight in model.parameters():
                    weight.mul_(0.9)


def test_layers_can_run_one_after_the_other(size: str, world: World) -> None:
    """As for features of some of them, within the forward pass of a task."""

    class Features(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model: Any = model

        def forward(self, images: Tensor) -> Tensor:
            found = self.model.forward_intermediates(images, intermediates_only=True)
            return torch.stack([each.square().mean() for each in found]).sum()

    one, other = map(Features, same_models())
    shard(other, "fsdp", world)
    images = torch.randn(2, 3, 32, 32)
    for _ in range(2):
        for model in (one, other):
            model.zero_grad()
            model(images).backward()
        for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
            assert (mine.grad is None) == (theirs.grad is None)
            if mine.grad is not None:
                found = whole(theirs.grad)
                torch.testing.assert_close(found, mine.grad, rtol=1e-4, atol=1e-5)


def test_a_small_model_is_gathered_once_for_all_micro_batches(
    size: str, world: World, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = Runtime(device="cpu", parallelism="fsdp", micro_batch=4)
    one = stepper(tiny(), world, runtime)
    batch = random_batch(one.recipe, 16, one.state.task, world.device)
    one.train_step(batch)
    whole: list[bool] = []
    block = one.state.model.encoder.blocks[0]  # type: ignore[union-attr]
    plain = one.forward_backward.forward

    def forward(views: Any) -> Any:
        whole.append(not is_dtensor(block.norm1.weight))
        return plain(views)

    monkeypatch.setattr(one.forward_backward, "forward", forward)
    one.train_step(batch)
    assert whole == [False, *[size == "small"] * 3]
    assert is_dtensor(block.norm1.weight)


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_a_step_has_no_operation_on_dtensors(
    size: str, name: str, world: World, tiny: Tiny
) -> None:
    optimizer = OptimizerConfig(name=name, lr=1e-2, clip_norm=0.1)
    one = stepper(tiny(optimizer=optimizer), world)
    batch = random_batch(one.recipe, 16, one.state.task, world.device)
    one.train_step(batch)  # the optimizer's memory is made
    with Counted() as counted:
        assert one.train_step(batch).applied
    assert not counted.names


def kept_on_the_host(model: nn.Module) -> dict[str, Any]:
    """What FSDP keeps of a step: flags, events, tensors in flight, and their order."""
    found: dict[str, Any] = {}
    for name, part in model.named_modules():
        if not is_sharded(part):
            continue
        state: Any = part._get_fsdp_state()
        groups = getattr(state, "_fsdp_param_groups", [state._fsdp_param_group])
        owners = [state, state._state_ctx, state._comm_ctx, *groups]
        for number, owner in enumerate(owners):
            for key, value in vars(owner).items():
                if isinstance(value, bool | Enum):
                    kept = value
                elif isinstance(value, list | dict | set):
                    kept = len(value)
                else:
                    kept = value is None
                found[f"{name}/{number}/{key}"] = kept
    return found


@pytest.mark.parametrize("parallelism", ["fsdp", "hybrid"])
@pytest.mark.parametrize("micro_batch", [None, 3])
def test_a_step_leaves_fsdp_as_it_was(
    parallelism: Any, micro_batch: int | None, size: str, tiny: Tiny
) -> None:
    """So a CUDA graph may replay the kernels of a step, without the host's part."""
    runtime = replace(CPU, parallelism=parallelism, micro_batch=micro_batch)
    local_size = 4 if parallelism == "fsdp" else 2
    with fake_world(4):
        world = World(0, 4, torch.device("cpu"), local_size=local_size)
        one = stepper(tiny(), world, runtime)
        batch = random_batch(one.recipe, 4, one.state.task, world.device)
        for _ in range(2):
            one.train_step(batch)
        before = kept_on_the_host(one.state.task)
        assert any(key.endswith("_all_gather_result") for key in before)
        one.train_step(batch)
        assert kept_on_the_host(one.state.task) == before
        # An evaluation leaves an order behind, which the next step clears.
        with torch.no_grad(), unsharded(one.state.task), unsharded(one.state.model):
            one.state.model(torch.ones(2, 3, 8, 8))
        assert kept_on_the_host(one.state.task) != before
        one.train_step(batch)
        assert kept_on_the_host(one.state.task) == before


def test_large_models_train_as_small_ones(
    world: World, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny(random=True)
    found = []
    for limit in (sharding.KEPT_BYTES, 0):
        monkeypatch.setattr(sharding, "KEPT_BYTES", limit)
        one = stepper(recipe, world)
        torch.manual_seed(0)
        batch = random_batch(recipe, 16, one.state.task, world.device)
        found.append([one.train_step(batch).loss for _ in range(3)])
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", [AdamW, SGD])
@pytest.mark.parametrize("fused", [False, True])
def test_shards_step_in_the_bits_of_whole_weights(
    kind: Any, fused: bool, world: World
) -> None:
    mesh = init_device_mesh("cpu", (1,))
    settings = {"momentum": 0.9} if kind is SGD else {}
    first = [torch.randn(4, 3), torch.randn(5)]
    shards = [distribute_tensor(each.clone(), mesh, [Shard(0)]) for each in first]
    lists = [[nn.Parameter(each) for each in part] for part in (first, shards)]
    optimizers = [kind(part, lr=0.1, fused=fused, **settings) for part in lists]
    for number in range(3):
        torch.manual_seed(number)
        for plain, cut in zip(*lists, strict=True):
            plain.grad = torch.randn(plain.shape)
            cut.grad = distribute_tensor(plain.grad.clone(), mesh, [Shard(0)])
        if number == 2:  # as after a resume
            optimizers[1].load_state_dict(optimizers[1].state_dict())
        for optimizer in optimizers:
            optimizer.step()
    for plain, cut in zip(*lists, strict=True):
        assert torch.equal(whole(cut), plain)
        memory, wanted = (
            each.state[p] for each, p in zip(optimizers, (plain, cut), strict=True)
        )
        assert memory.keys() == wanted.keys()
        for key, value in optimizers[1].state[cut].items():
            assert is_dtensor(value) == (value.ndim > 0)
            assert torch.equal(whole(value), optimizers[0].state[plain][key])
    assert optimizers[1].param_groups[0]["params"][0] is lists[1][0]


def test_squares_of_shards_add_up_to_the_norm_of_all() -> None:
    with fake_world(4):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        layer = nn.Linear(3, 4, bias=False)
        whole_gradient = torch.randn(4, 3)
        places = [Replicate(), Shard(0)]
        half = whole_gradient[:2].clone()
        cut = DTensor.from_local(half, mesh, places, run_check=False)
        layer.weight = nn.Parameter(torch.zeros_like(cut))
        layer.weight.grad = cut
        assert num_copies(cut) == 2
        assert num_copies(whole_gradient) == 1
        gradient = Gradient(layer, 4)
        # Each half is in two of the four processes.
        halves = [each.square().sum() for each in whole_gradient.chunk(2)]
        norm = gradient.whole_norm(torch.stack(halves).mean().reshape(1))
        torch.testing.assert_close(norm, whole_gradient.norm().reshape(1))
        gradient.clip(norm, 0.5)
        clipped = whole_gradient[:2] * 0.5 / (norm + 1e-6)
        torch.testing.assert_close(half, clipped)
