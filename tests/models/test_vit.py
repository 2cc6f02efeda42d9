"""A model gives the same result without gradients, traced and under torch.func."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import t2t

SMALL: dict[str, Any] = {"image_size": 32, "num_classes": 5, "depth": 3}


@pytest.mark.parametrize("name", ["t2t_vit_7", "t2t_vit_t_14"])
def test_inference_mode_changes_no_logit(name: str) -> None:
    model = t2t.create_model(name, **SMALL).eval()
    images = torch.randn(2, 3, 32, 32)
    expected = model(images).detach()
    with torch.inference_mode():
        torch.testing.assert_close(model(images), expected)


@pytest.mark.filterwarnings("ignore")  # torch.jit.trace is deprecated
@pytest.mark.parametrize("grad", [True, False])
def test_a_jit_trace_gives_the_same_logits(grad: bool) -> None:
    model = t2t.create_model("t2t_vit_7", **SMALL).eval()
    images = torch.randn(2, 3, 32, 32)
    with torch.set_grad_enabled(grad):
        traced = torch.jit.trace(model, images)
    with torch.no_grad():
        torch.testing.assert_close(traced(images), model(images))


@pytest.mark.filterwarnings("ignore")  # torch warns of slow vmap rules
def test_vmap_over_models() -> None:
    models = [t2t.create_model("t2t_vit_7", **SMALL).eval() for _ in range(2)]
    weights, buffers = torch.func.stack_module_state(models)
    images = torch.randn(2, 3, 32, 32)

    def logits(*state: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(models[0], state, images)

    with torch.no_grad():
        found = torch.vmap(logits)(weights, buffers)
        wanted = torch.stack([model(images) for model in models])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore")  # torch warns of slow vmap rules
def test_per_sample_gradients() -> None:
    model = t2t.create_model("t2t_vit_7", **SMALL).eval()
    images = torch.randn(2, 3, 32, 32)

    def loss(image: Tensor) -> Tensor:
        return model(image[None]).square().sum()

    found = torch.vmap(torch.func.grad(loss))(images)
    for image, gradient in zip(images, found, strict=True):
        wanted = torch.func.grad(loss)(image)
        torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore")  # torch warns of slow vmap rules
def test_forward_mode_derivatives_need_no_autograd() -> None:
    model = t2t.create_model("t2t_vit_7", **SMALL).eval()
    images, along = torch.randn(2, 2, 3, 32, 32)
    # Torch has forward-mode derivatives of the MATH backend only.
    with sdpa_kernel(SDPBackend.MATH):
        _, wanted = torch.func.jvp(model, (images,), (along,))
        with torch.no_grad():
            _, found = torch.func.jvp(model, (images,), (along,))
    torch.testing.assert_close(found, wanted)
