"""A training step and an inference step for any model."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from t2t.lab.bench.cases import COMPILED, REPLAYED, Case
from t2t.lab.bench.timing import Step
from t2t.training.evaluation.evaluate import autocast
from t2t.training.runtime import PRECISIONS


def training_step(model: nn.Module, case: Case, device: torch.device) -> Step:
    """A full step: forward, loss, backward, optimizer and EMA."""
    images = random_images(case, device)
    num_classes = int(model.num_classes)  # type: ignore[arg-type]
    labels = torch.randint(0, num_classes, (case.batch,), device=device)
    model.train()

    def loss_of(images: Tensor, labels: Tensor) -> Tensor:
        with autocast(device, PRECISIONS[case.precision]):
            logits = model(images)
        return F.cross_entropy(logits.float(), labels, label_smoothing=0.1)

    forward = maybe_compiled(loss_of, case)
    weights: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
    ema = [weight.detach().clone() for weight in weights]
    optimizer = torch.optim.AdamW(
        weights,
        lr=5e-4,
        weight_decay=0.05,
        fused=True,
        capturable=case.launch in REPLAYED,
    )
    scaler = torch.amp.GradScaler(device.type, enabled=case.precision == "fp16")

    def step() -> None:
        scaler.scale(forward(images, labels)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            torch._foreach_lerp_(ema, weights, 1 - 0.9999)

    return step


def inference_step(model: nn.Module, case: Case, device: torch.device) -> Step:
    """One forward pass without gradients."""
    images = random_images(case, device)
    model.eval()

    def logits_of(images: Tensor) -> Tensor:
        with autocast(device, PRECISIONS[case.precision]):
            return model(images)

    forward = maybe_compiled(logits_of, case)

    @torch.inference_mode()
    def step() -> None:
        forward(images)

    return step


STEPS = {"train": training_step, "infer": inference_step}


def random_images(case: Case, device: torch.device) -> Tensor:
    """Random images; some kernels run faster on zeros."""
    shape = (case.batch, 3, case.image_size, case.image_size)
    return torch.randn(shape, device=device).to(PRECISIONS[case.precision])


def maybe_compiled(function: Callable[..., Any], case: Case) -> Callable[..., Any]:
    """The function, compiled if the case says so."""
    return torch.compile(function) if case.launch in COMPILED else function


def captured(step: Step) -> Step:
    """The step captured as a CUDA graph."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay(held: Step = step) -> None:
        """Replays the graph; `held` keeps its tensors alive."""
        graph.replay()

    return replay
