"""Compares a residual stream in bf16 with one in float32: errors and speed.

    python benchmarks/residual_stream.py --data path/to/cifar10 --out rows.json

Errors are relative norms of the gradient of all weights against float32 throughout, for
the built-in model on CIFAR-10's test images. Speeds are of whole training steps as CUDA
graphs, without torch.compile.
"""

import argparse
from contextlib import ExitStack
from itertools import product
from pathlib import Path

import torch
import torch.nn.functional as F
from cifar_images import first_images
from kept_rows import keep_rows
from torch import Tensor

import t2t
from t2t.lab.bench.cases import Case
from t2t.lab.bench.measure_training import measure_recipes
from t2t.lab.bench.steps import STEPS, captured
from t2t.lab.bench.timing import time_steps
from t2t.models.vit import VisionTransformer
from t2t.recipes import find_recipe
from t2t.training.runtime import RESIDUALS, Runtime

CUDA = torch.device("cuda")


def gradient(
    model: VisionTransformer, images: Tensor, labels: Tensor, half: bool
) -> Tensor:
    """The gradient of all weights, as one vector."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    with torch.autocast("cuda", torch.bfloat16, enabled=half):
        logits = model(images)
    loss = F.cross_entropy(logits.float(), labels, label_smoothing=0.1)
    found = torch.autograd.grad(loss, weights)
    return torch.cat([each.double().flatten() for each in found])


def error_rows(data: str) -> list[dict[str, object]]:
    """Gradient errors by the precision of the stream and by what is fused."""
    model = t2t.load("builtin").cuda()
    assert isinstance(model, VisionTransformer)
    batch = first_images(data, 512)
    images, labels = batch[0].float().cuda(), batch[1].cuda()
    wanted = gradient(model, images, labels, half=False)
    parts = {"tokens": model.tokenizer, "blocks": model.encoder}
    rows: list[dict[str, object]] = []
    for plain, name in product(((), ("tokens",), ("tokens", "blocks")), RESIDUALS):
        model.encoder.residual_dtype = RESIDUALS[name]
        with ExitStack() as stack:
            for part in plain:  # hooks disable fusion
                for module in [*parts[part].modules()][1:]:
                    hook = module.register_forward_hook(lambda *given: None)
                    stack.callback(hook.remove)
            found = gradient(model, images, labels, half=True)
        error = ((found - wanted).norm() / wanted.norm()).item()
        fused = [part for part in parts if part not in plain]
        if fused or name == "half":  # modules under autocast keep a stream of their own
            stream = name if "blocks" in fused else "autocast's"
            rows.append(
                {"residual": stream, "fused": fused, "gradient_error": round(error, 5)}
            )
    return rows


def rate_rows(seconds: float) -> list[dict[str, object]]:
    """Images per second of T2T-ViT-14's step, alternating between the two."""
    case = Case(model="t2t_vit_14", launch="eager_graph")
    steps = {}
    for name, dtype in RESIDUALS.items():
        model = case.build().to(CUDA)
        model.encoder.residual_dtype = dtype  # type: ignore[union-attr]
        step = STEPS["train"](model, case, CUDA)
        with torch.cuda.stream(torch.cuda.Stream(CUDA)):
            for _ in range(3):
                step()
        torch.cuda.synchronize()
        steps[name] = captured(step)
    rows = []
    for turn in range(2):
        for name, step in steps.items():
            timing = time_steps(step, CUDA, seconds)
            rows.append(
                {
                    "residual": name,
                    "model": case.model,
                    "batch": case.batch,
                    "turn": turn,
                    "images_per_second": round(case.batch / timing.seconds, 1),
                }
            )
    return rows


def recipe_rows(seconds: float) -> list[dict[str, object]]:
    """Images per second of the trainer's step for a CIFAR-10 recipe."""
    recipe = find_recipe("cifar10.t2t_vit_7")
    rows = []
    for name in RESIDUALS:
        runtime = Runtime(device="cuda", compile="off", residual=name)  # type: ignore[arg-type]
        for row, _ in measure_recipes(
            [recipe], [runtime], CUDA, None, "", seconds=seconds
        ):
            rate = row["images_per_second"]
            rows.append(
                {
                    "residual": name,
                    "recipe": recipe.name,
                    "batch": recipe.batch_size,
                    "images_per_second": rate,
                    "phases": row.get("phases"),
                }
            )
    return rows


def main() -> None:
    """Measures everything, and prints and saves the rows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows: list[dict[str, object]] = []
    for part in (
        lambda: error_rows(given.data),
        lambda: rate_rows(given.seconds),
        lambda: recipe_rows(given.seconds),
    ):
        for row in part():
            print(row, flush=True)
            rows.append(row)
        keep_rows(given.out, rows)


if __name__ == "__main__":
    main()
