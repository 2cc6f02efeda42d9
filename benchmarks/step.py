"""Images a second of whole training steps and of inference, ours beside timm's.

    python benchmarks/step.py t2t_vit_14 deit_small_patch16_224 --out rows.json

A training step is forward, loss, backward, fused AdamW and the weights' average, all
captured in one CUDA graph: on a virtual machine, launching a step's kernels one by one
can take longer than running them. `--launch compiled` leaves the graph out, and
`--launch reduce-overhead` leaves capturing to torch.compile.
"""

import argparse
import gc
import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import t2t

Step = Callable[[], Any]
PRECISIONS = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": None}


def forward_of(model: nn.Module, options: argparse.Namespace) -> Callable[..., Any]:
    """The model under autocast."""
    dtype = PRECISIONS[options.precision]

    def forward(images: torch.Tensor) -> torch.Tensor:
        with torch.autocast(
            options.device, dtype or torch.bfloat16, enabled=dtype is not None
        ):
            return model(images)

    return forward


def training_step(model: nn.Module, options: argparse.Namespace) -> Step:
    """Everything between two batches, on one batch that lies on the device."""
    forward = forward_of(model.train(), options)
    images, labels = batch_of(options)

    def loss_of(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(forward(images).float(), labels, label_smoothing=0.1)

    compiled = compile_for(loss_of, options)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    captured = options.launch == "graph"
    optimizer = torch.optim.AdamW(
        weights, lr=5e-4, weight_decay=0.05, fused=True, capturable=captured
    )
    average = [weight.detach().clone() for weight in weights]

    def step() -> torch.Tensor:
        loss = compiled(images, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch._foreach_lerp_(average, weights, 1 - 0.9999)
        return loss.detach()

    return step


def inference_step(model: nn.Module, options: argparse.Namespace) -> Step:
    """One forward pass without gradients."""
    compiled = compile_for(forward_of(model.eval(), options), options)
    images, _ = batch_of(options)

    @torch.inference_mode()
    def step() -> torch.Tensor:
        return compiled(images)

    return step


STEPS = {"train": training_step, "infer": inference_step}


def batch_of(options: argparse.Namespace) -> tuple[torch.Tensor, torch.Tensor]:
    """Random images, never zeros: some kernels run faster on those."""
    shape = (options.batch, 3, options.image_size, options.image_size)
    images = torch.randn(shape, device=options.device)
    dtype = PRECISIONS[options.precision]
    labels = torch.randint(0, 1000, (options.batch,), device=options.device)
    return images.to(dtype or torch.float32), labels


def compile_for(
    function: Callable[..., Any], options: argparse.Namespace
) -> Callable[..., Any]:
    """The function as the chosen way of launching wants it."""
    if options.launch == "eager":
        return function
    mode = "reduce-overhead" if options.launch == "reduce-overhead" else None
    return torch.compile(function, mode=mode)


def peak_memory(step: Step) -> float:
    """GiB of one step that is launched, not replayed: a graph hides its memory."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / 2**30


def captured(step: Step) -> Step:
    """The step as one CUDA graph."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def seconds_each(step: Step, device: str, repeats: int) -> float:
    """Median over rounds of the mean seconds of a step."""
    rounds = []
    for _ in range(5):
        synchronise(device)
        start = time.perf_counter()
        for _ in range(repeats):
            step()
        synchronise(device)
        rounds.append((time.perf_counter() - start) / repeats)
    return statistics.median(rounds)


def synchronise(device: str) -> None:
    """Waits for all work on the device."""
    if device == "cuda":
        torch.cuda.synchronize()


def measure(name: str, mode: str, options: argparse.Namespace) -> dict[str, Any]:
    """One row of the record."""
    torch.manual_seed(0)
    drop_path = 0.1 if mode == "train" else 0.0
    model = t2t.create_model(
        name, image_size=options.image_size, drop_path=drop_path
    ).to(options.device)
    step = STEPS[mode](model, options)
    memory = None
    if options.device == "cuda":
        # Compiling, cuDNN's choices and capturing all want a stream of their own.
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
            memory = peak_memory(step)
        torch.cuda.synchronize()
        if options.launch == "graph":
            step = captured(step)
    for _ in range(5):
        step()
    seconds = seconds_each(step, options.device, options.repeats)
    if options.profile:
        print_kernels(step)
    cuda = options.device == "cuda"
    return {
        "model": name,
        "mode": mode,
        "image_size": options.image_size,
        "batch": options.batch,
        "precision": options.precision,
        "source": "synthetic",
        "images_per_second": round(options.batch / seconds, 1),
        "peak_memory_gib": None if memory is None else round(memory, 2),
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name() if cuda else None,
        "command": f"python {shlex.join(sys.argv)}",
    }


def print_kernels(step: Step, num_steps: int = 3) -> None:
    """The kernels that take longest, in milliseconds a step."""
    with torch.profiler.profile() as profile:
        for _ in range(num_steps):
            step()
        torch.cuda.synchronize()
    averages = profile.key_averages()
    print(averages.table(sort_by="self_device_time_total", row_limit=25))


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", help="names of ours or of timm's")
    parser.add_argument("--modes", nargs="+", choices=STEPS, default=["train"])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--precision", choices=PRECISIONS, default="bfloat16")
    parser.add_argument(
        "--launch",
        choices=["graph", "reduce-overhead", "compiled", "eager"],
        default="graph",
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--out", type=Path)
    return parser.parse_args(arguments)


def main() -> None:
    """Measures every model in every mode and prints and writes the rows."""
    options = parse()
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    rows = []
    for name in options.models:
        for mode in options.modes:
            rows.append(measure(name, mode, options))
            print(json.dumps(rows[-1]), flush=True)
            if options.out is not None:
                options.out.write_text(json.dumps(rows, indent=1) + "\n")
            torch.compiler.reset()
            gc.collect()
            if options.device == "cuda":
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
