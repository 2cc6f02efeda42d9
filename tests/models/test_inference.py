"""Inference on a CPU takes the fast path, and gives what the plain one gives."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import t2t
from t2t.models import encoders, tokenizers
from t2t.ops.prepared import Preparations

SMALL: dict[str, Any] = {"image_size": 32, "num_classes": 5, "depth": 3}
TAKEN = {
    "t2t_vit_7": {"tokens", "blocks"},
    "t2t_vit_t_14": {"blocks"},
    "t2t_vit_14_se": {"tokens"},
    "t2t_vit_dense": {"tokens"},
}


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Which fast paths ran."""
    found: set[str] = set()

    def noting(name: str, function: Any) -> Any:
        def run(*arguments: Any) -> Any:
            found.add(name)
            return function(*arguments)

        return run

    stack, step = encoders.inference_stack, tokenizers.inference_step
    monkeypatch.setattr(encoders, "inference_stack", noting("blocks", stack))
    monkeypatch.setattr(tokenizers, "inference_step", noting("tokens", step))
    return found


@pytest.mark.parametrize("name", TAKEN)
def test_the_fast_path_gives_what_the_plain_one_gives(
    name: str, taken: set[str]
) -> None:
    torch.manual_seed(0)
    sizes = SMALL if name != "t2t_vit_dense" else {"image_size": 32, "num_classes": 5}
    model = t2t.create_model(name, **sizes).eval()
    images = torch.randn(2, 3, 32, 32)
    expected = model(images).detach()
    tokens = model.forward_features(images).detach()
    assert not taken, "gradients need the plain path"
    with torch.inference_mode(), Preparations().in_use():
        for _ in range(2):
            torch.testing.assert_close(model(images), expected, rtol=1e-4, atol=1e-5)
        found = model.forward_features(images)
    torch.testing.assert_close(found, tokens, rtol=1e-4, atol=1e-5)
    assert taken == TAKEN[name]


def test_training_and_hooks_keep_to_the_plain_path(taken: set[str]) -> None:
    model = t2t.create_model("t2t_vit_7", **SMALL)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        model.train()(images)
        assert not taken
        model.eval()
        for part in model.modules():
            if isinstance(part, nn.LayerNorm):
                part.register_forward_hook(lambda *_: None)
        model(images)
    assert not taken


@pytest.mark.filterwarnings("ignore")  # tracing is old, and says so in many words
@pytest.mark.parametrize("grad", [True, False])
def test_tracing_sees_one_path_with_gradients_and_without(grad: bool) -> None:
    model = t2t.create_model("t2t_vit_7", **SMALL).eval()
    images = torch.randn(2, 3, 32, 32)
    with torch.set_grad_enabled(grad):
        traced = torch.jit.trace(model, images)
    with torch.no_grad():
        torch.testing.assert_close(traced(images), model(images))


@pytest.mark.filterwarnings("ignore")  # torch tells of what it does slowly
def test_many_models_are_one_vmapped() -> None:
    models = [t2t.create_model("t2t_vit_7", **SMALL).eval() for _ in range(2)]
    weights, buffers = torch.func.stack_module_state(models)
    images = torch.randn(2, 3, 32, 32)

    def logits(*state: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(models[0], state, images)

    with torch.no_grad():
        found = torch.vmap(logits)(weights, buffers)
        wanted = torch.stack([model(images) for model in models])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore")  # torch tells of what it does slowly
def test_gradients_of_each_sample_are_those_of_its_own_loss() -> None:
    model = t2t.create_model("t2t_vit_7", **SMALL).eval()
    images = torch.randn(2, 3, 32, 32)

    def loss(image: Tensor) -> Tensor:
        return model(image[None]).square().sum()

    found = torch.vmap(torch.func.grad(loss))(images)
    for image, gradient in zip(images, found, strict=True):
        wanted = torch.func.grad(loss)(image)
        torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore")  # torch tells of what it does slowly
def test_derivatives_forward_need_no_gradients() -> None:
    model = t2t.create_model("t2t_vit_7", **SMALL).eval()
    images, along = torch.randn(2, 2, 3, 32, 32)
    # Torch has these derivatives of its plainest attention alone.
    with sdpa_kernel(SDPBackend.MATH):
        _, wanted = torch.func.jvp(model, (images,), (along,))
        with torch.no_grad():
            _, found = torch.func.jvp(model, (images,), (along,))
    torch.testing.assert_close(found, wanted)
