"""The fused path computes what the plain one does, and is taken only where it may."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor
from torch.nn.modules.module import register_module_forward_hook
from torch.testing._internal.two_tensor import TwoTensor

import t2t
from t2t.models import blocks, encoders, tokenizers
from t2t.models.blocks import Block
from t2t.models.fusion import are_plain, is_fused, step_weights
from t2t.models.layers import DropPath
from t2t.models.shards import is_dtensor, is_sharded
from t2t.ops import performer_step
from t2t.ops.availability import HAS_TRITON

SMALL: dict[str, Any] = {"image_size": 32, "num_classes": 5, "depth": 3}


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Fused paths opened for float32 on a CPU; lists which of them ran."""
    ran: list[str] = []

    def noting(name: str, function: Any) -> Any:
        def run(*arguments: Any) -> Any:
            ran.append(name)
            return function(*arguments)

        return run

    for module in (encoders, tokenizers):
        monkeypatch.setattr(module, "is_fused", lambda x: True)
    monkeypatch.setattr(tokenizers, "has_kernel", lambda image, weights: True)
    stack, step = encoders.block_stack, performer_step.performer_step
    softmax = tokenizers.softmax_step
    monkeypatch.setattr(tokenizers, "softmax_step", noting("tokens", softmax))
    monkeypatch.setattr(encoders, "block_stack", noting("blocks", stack))
    monkeypatch.setattr(tokenizers, "performer_step", noting("tokens", step))
    return ran


def plain_and_fused(model: nn.Module, ran: list[str]) -> list[list[torch.Tensor]]:
    """Logits and gradients by the plain path, then by the fused one."""
    images = torch.randn(4, 3, 32, 32)
    results = []
    for listened in (True, False):
        handles = []
        if listened:
            handles = [
                part.register_forward_hook(lambda *_: None)
                for part in model.modules()
                if isinstance(part, nn.Linear)
            ]
        model.zero_grad()
        logits = model(images)
        logits.square().sum().backward()
        results.append(
            [logits.detach(), *(each.grad.clone() for each in model.parameters())]
        )
        assert not ran or not listened, "whoever hooks a module gets the plain path"
        for handle in handles:
            handle.remove()
    return results


@pytest.mark.parametrize(
    "model_args",
    [
        {},
        {"tokenizer": "t2t"},
        {"class_token": False, "pool": "mean"},
        {"distilled": True},
        {"qkv_bias": True, "positions": "learned_1d"},
        {"positions": "none"},
    ],
)
def test_fused_path_agrees(fused: list[str], model_args: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = t2t.create_model("t2t_vit_7", **SMALL, token_dropout=0.0, **model_args)
    for part in model.modules():
        if isinstance(part, nn.LayerNorm):
            nn.init.normal_(part.weight, 1, 0.1)
            nn.init.normal_(part.bias, 0, 0.1)
    plain, quick = plain_and_fused(model, fused)
    assert fused == ["tokens", "tokens", "blocks"]
    for wanted, found in zip(plain, quick, strict=True):
        torch.testing.assert_close(found, wanted, rtol=2e-4, atol=2e-5)


OTHER_DESIGNS: list[tuple[str, dict[str, Any]]] = [
    ("t2t_vit_14_se", {}),
    ("t2t_vit_16_ghost", {}),
    ("t2t_vit_7", {"positions": "relative"}),
    ("t2t_vit_7", {"positions": "learned_1d", "positions_at": "every_layer"}),
    ("t2t_vit_7", {"mixer": "linformer"}),
    ("t2t_vit_7", {"mixer": "axial"}),
    ("t2t_vit_7", {"mixer": "conv_attention"}),
    ("t2t_vit_7", {"mlp": "depthwise"}),
    ("t2t_vit_7", {"wiring": "pyramid", "pyramid_stages": (1, 2)}),
]


@pytest.mark.parametrize(("name", "model_args"), OTHER_DESIGNS)
def test_other_designs_are_no_stack_of_blocks(
    fused: list[str], name: str, model_args: dict[str, Any]
) -> None:
    model = t2t.create_model(name, **SMALL, **model_args).eval()
    model(torch.randn(2, 3, 32, 32))
    assert "blocks" not in fused


@pytest.mark.parametrize(("name", "model_args"), OTHER_DESIGNS)
def test_blocks_of_other_designs_compute_the_same_by_themselves(
    name: str, model_args: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    sizes = {**SMALL, "token_dropout": 0.0}
    model = t2t.create_model(name, **sizes, **model_args).eval()
    images = torch.randn(2, 3, 32, 32)
    plain = model(images)
    monkeypatch.setattr(blocks, "is_fused", lambda x: True)
    torch.testing.assert_close(model(images), plain, rtol=1e-3, atol=1e-4)


def test_all_features_are_returned_where_they_are_asked_for(fused: list[str]) -> None:
    model = t2t.create_model("t2t_vit_7", **SMALL).eval()
    assert model.forward_features(torch.randn(2, 3, 32, 32)).shape == (2, 5, 256)
    assert "blocks" in fused


def test_dropping_too_few_samples_is_left_to_the_plain_path(fused: list[str]) -> None:
    model = t2t.create_model("t2t_vit_7", **SMALL, drop_path=0.1)
    model(torch.randn(4, 3, 32, 32))
    assert "blocks" not in fused
    model(torch.randn(32, 3, 32, 32))
    assert "blocks" in fused


@pytest.mark.parametrize("drop_path", [0.0, 0.5])
def test_blocks_that_are_hooked_from_outside_run_fused_one_by_one(
    fused: list[str], drop_path: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As sharded blocks do, whose weights are whole only while they run."""
    ran: list[Any] = []
    alone = blocks.one_block

    def one_block(*given: Any) -> Tensor:
        ran.append(given)
        return alone(*given)

    monkeypatch.setattr(blocks, "one_block", one_block)
    monkeypatch.setattr(blocks, "is_fused", lambda x: True)
    sizes = {**SMALL, "token_dropout": 0.0}
    model = t2t.create_model("t2t_vit_7", **sizes, drop_path=drop_path).train()
    images = torch.randn(8, 3, 32, 32)
    found = []
    for hooks_of in (Block, nn.Linear):
        handles = [
            part.register_forward_hook(lambda *_: None)
            for part in model.modules()
            if type(part) is hooks_of
        ]
        model.zero_grad()
        torch.manual_seed(0)
        logits = model(images)
        logits.square().sum().backward()
        grads = [each.grad.clone() for each in model.parameters()]
        found.append([logits.detach(), *grads])
        for handle in handles:
            handle.remove()
    assert len(ran) == 3
    assert "blocks" not in fused
    if not drop_path:  # which samples are dropped is drawn in another way
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("drop_path", [0.0, 0.5])
def test_checkpointed_blocks_run_fused_one_by_one(
    fused: list[str], drop_path: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "is_fused", lambda x: True)
    sizes = {**SMALL, "token_dropout": 0.0}
    model = t2t.create_model("t2t_vit_7", **sizes, drop_path=drop_path).train()
    images = torch.randn(8, 3, 32, 32)
    found = []
    for checkpoints in (False, True):
        model.set_grad_checkpointing(checkpoints)
        # A hook keeps blocks without checkpoints from running as one stack.
        hook = model.encoder.blocks[0].register_forward_hook(lambda *_: None)
        if checkpoints:
            hook.remove()
        model.zero_grad()
        torch.manual_seed(0)
        logits = model(images)
        logits.square().sum().backward()
        grads = [each.grad.clone() for each in model.parameters()]
        found.append([logits.detach(), *grads])
        hook.remove()
    assert "blocks" not in fused
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def twice(layer: nn.Linear) -> None:
    """Calls another function in the layer's place."""
    plain = layer.forward
    layer.forward = lambda x: 2 * plain(x)  # type: ignore[method-assign]


CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "a layer within another": lambda block, step: setattr(
        block.mixer, "proj", nn.Sequential(block.mixer.proj)
    ),
    "another activation": lambda block, step: block.mlp.expand.__setitem__(
        1, nn.ReLU()
    ),
    "another GELU": lambda block, step: setattr(
        block.mlp.expand[1], "approximate", "tanh"
    ),
    "one layer more": lambda block, step: block.mlp.expand.append(nn.Tanh()),
    "a function in place of a layer": lambda block, step: twice(block.mlp.reduce),
    "a gate": lambda block, step: setattr(block.mixer, "gate", nn.Sigmoid()),
    "no stochastic depth": lambda block, step: setattr(
        block, "drop_path", nn.Identity()
    ),
    "another epsilon": lambda block, step: setattr(block.norm2, "eps", 0.5),
    "another scale": lambda block, step: setattr(block.mixer, "scale", 2.0),
    "another activation in a step": lambda block, step: step.mlp.expand.__setitem__(
        1, nn.Tanh()
    ),
    "another epsilon in a step": lambda block, step: setattr(step.norm2, "eps", 0.5),
    "no gain in a norm": lambda block, step: setattr(
        block, "norm1", nn.LayerNorm(256, elementwise_affine=False)
    ),
    "no bias in a layer": lambda block, step: block.mlp.reduce.register_parameter(
        "bias", None
    ),
    "no bias in a step": lambda block, step: step.qkv.register_parameter("bias", None),
    "no bias in a step's norm": lambda block, step: step.norm2.register_parameter(
        "bias", None
    ),
    "no dropout in a step": lambda block, step: setattr(step, "dropout", nn.Identity()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_changed_in_a_model_is_computed(
    fused: list[str], monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    torch.manual_seed(0)
    model = t2t.create_model("t2t_vit_7", **SMALL).eval()
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.3)
    CHANGES[change](model.encoder.blocks[1], model.tokenizer.steps[0])
    images = torch.randn(2, 3, 32, 32)
    quick = model(images)
    assert len(fused) == 2, "one of two steps, or both without the blocks"
    for module in (encoders, tokenizers):
        monkeypatch.setattr(module, "is_fused", lambda x: False)
    plain = model(images)
    with torch.no_grad():
        on_cpu = model(images)
    torch.testing.assert_close(quick, plain, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(on_cpu, plain, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_changed_is_computed_in_training_too(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where each block runs fused by itself."""
    torch.manual_seed(0)
    sizes = {**SMALL, "token_dropout": 0.0, "drop_path": 0.0}
    model = t2t.create_model("t2t_vit_7", **sizes).train()
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.3)
    CHANGES[change](model.encoder.blocks[1], model.tokenizer.steps[0])
    images = torch.randn(2, 3, 32, 32)
    plain = model(images)
    monkeypatch.setattr(blocks, "is_fused", lambda x: True)
    torch.testing.assert_close(model(images), plain, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "listen", ["register_full_backward_hook", "register_full_backward_pre_hook"]
)
def test_who_listens_to_gradients_hears_them(fused: list[str], listen: str) -> None:
    model = t2t.create_model("t2t_vit_7", **SMALL)
    heard: list[nn.Module] = []
    for part in (model.encoder.blocks[0].mixer.proj, model.tokenizer.steps[0].proj):
        getattr(part, listen)(lambda part, *grads: heard.append(part))
    model(torch.randn(2, 3, 32, 32)).sum().backward()
    assert len(heard) == 2
    assert fused == ["tokens"]


def test_who_listens_to_all_modules_hears_them(fused: list[str]) -> None:
    model = t2t.create_model("t2t_vit_7", **SMALL).eval()
    heard: list[str] = []
    handle = register_module_forward_hook(
        lambda module, *_: heard.append(type(module).__name__)
    )
    try:
        model(torch.randn(2, 3, 32, 32))
        with torch.no_grad():
            model(torch.randn(2, 3, 32, 32))
    finally:
        handle.remove()
    assert heard.count("Block") == 2 * SMALL["depth"]
    assert not fused


@pytest.mark.parametrize("without", [torch.enable_grad, torch.no_grad])
def test_parts_drop_in_a_mode_of_their_own(
    fused: list[str], without: Callable[[], Any]
) -> None:
    model = t2t.create_model("t2t_vit_7", **SMALL, drop_path=0.5, token_dropout=0.5)
    images = torch.randn(16, 3, 32, 32)
    parts = [part for part in model.modules() if isinstance(part, DropPath)]
    drops = [part for part in model.modules() if isinstance(part, nn.Dropout)]
    with without():
        for some, are_random in ((parts, True), (drops, True), ([], False)):
            model.eval()
            for part in some:
                part.train()
            assert torch.equal(model(images), model(images)) != are_random
        model.train()
        for part in (*parts, *drops):
            part.eval()
        torch.testing.assert_close(model(images), model(images), rtol=0, atol=0)


def test_what_kernels_cannot_do_is_left_to_the_plain_path() -> None:
    seen: list[bool] = []
    with FakeTensorMode():
        tokens = torch.empty(2, 3, 4, dtype=torch.bfloat16, device="cuda")
        assert is_fused(tokens) == HAS_TRITON
        assert not is_fused(tokens[:0])
        with forward_ad.dual_level():
            assert not is_fused(tokens)
        torch.vmap(lambda tokens: seen.append(is_fused(tokens)) or tokens)(tokens)
    assert seen == [False]


def test_a_layer_cut_into_shards_is_not_plain() -> None:
    layer = nn.Linear(4, 4)
    assert are_plain([layer])
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        layer.weight = nn.Parameter(distribute_tensor(layer.weight.detach(), mesh))
        assert not are_plain([layer])
    finally:
        dist.destroy_process_group()


def test_a_layer_whose_numbers_lie_in_other_tensors_is_not_plain() -> None:
    """As quantized weights are, which all begin at address 0."""
    layer = nn.Linear(4, 4)
    weight = layer.weight.detach()
    layer.weight = nn.Parameter(TwoTensor(weight, weight), requires_grad=False)
    assert not are_plain([layer])


def test_compiled_code_asks_whether_layers_are_plain_in_one_graph() -> None:
    layer = nn.Linear(4, 4)

    @torch.compile(backend="eager", fullgraph=True)
    def compute(x: Tensor) -> Tensor:
        return layer(x) if are_plain([layer]) else x

    x = torch.randn(2, 4)
    torch.testing.assert_close(compute(x), layer(x))


def test_compiled_code_asks_whether_a_model_is_plain_in_one_graph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = t2t.create_model("t2t_vit_7", image_size=32, depth=2)
    monkeypatch.setattr(encoders, "is_fused", lambda x: True)

    @torch.compile(backend="eager", fullgraph=True)
    def count(tokens: Tensor) -> Tensor:
        stack = model.encoder.stack(tokens, model.norm)
        steps = [step_weights(step) for step in model.tokenizer.steps]
        found = len(stack or []) + len([each for each in steps if each is not None])
        return tokens + found

    tokens = torch.zeros(4, 5, model.config.dim)
    wanted = model.config.depth + len(model.tokenizer.steps)
    assert (count(tokens) == wanted).all()


@pytest.mark.parametrize("width", [64, 512])
def test_heads_may_be_fewer_or_wider_than_the_tokens(
    fused: list[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    torch.manual_seed(0)
    model = t2t.create_model("t2t_vit_7", **SMALL, tokenizer="patch").eval()
    for block in model.encoder.blocks:
        block.mixer.qkv = nn.Linear(256, 3 * width)
        block.mixer.proj = nn.Linear(width, 256)
        block.mixer.num_heads = 2
    images = torch.randn(2, 3, 32, 32)
    quick = model(images)
    assert fused == ["blocks"]
    monkeypatch.setattr(encoders, "is_fused", lambda x: False)
    with torch.no_grad():
        on_cpu = model(images)
    torch.testing.assert_close(quick, model(images), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(on_cpu, model(images), rtol=1e-4, atol=1e-5)


class WithMore(nn.Module):
    """A layer and what is added to it, which shows the layer's weights as its own."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.weight, self.bias = base, base.weight, base.bias
        self.more = nn.Linear(base.in_features, base.out_features)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.more(x)


@pytest.mark.parametrize("tokenizer", ["t2t", "t2t_performer"])
def test_layers_put_in_the_place_of_a_tokenizers_are_called(tokenizer: str) -> None:
    model = t2t.create_model("t2t_vit_7", **SMALL, tokenizer=tokenizer).eval()
    images = torch.randn(2, 3, 32, 32)
    step = model.tokenizer.steps[0]
    for owner, name in ((step, "qkv"), (model.tokenizer, "project")):
        layer = WithMore(getattr(owner, name))
        setattr(owner, name, layer)
        model(images).sum().backward()
        assert layer.more.weight.grad.abs().sum() > 0
        nn.init.zeros_(layer.more.weight)
        nn.init.zeros_(layer.more.bias)
        found = model(images)
        setattr(owner, name, layer.base)
        torch.testing.assert_close(found, model(images), rtol=1e-4, atol=1e-5)


def test_a_shard_is_looked_for_while_another_thread_imports_shards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The thread that writes checkpoints does; modules are empty at first.
    for name in ("torch.distributed.tensor", "torch.distributed.fsdp"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    assert not is_dtensor(torch.zeros(2))
    assert not is_sharded(nn.Linear(2, 2))
