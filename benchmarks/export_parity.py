"""Exports every model of the zoo to ONNX and compares it with PyTorch on photographs.

    python benchmarks/export_parity.py PHOTOS --out records/export/parity.json

PHOTOS is a folder of class folders. No published weights are needed: each model starts
from its initialisation, every parameter is moved away from it (scales by 20 %, biases
and positions by 0.05), the head is enlarged fivefold so that logits have the size of
trained ones, and AdamW (SGD for models above 200 million parameters) then takes a few
steps on photographs and their labels. The weights are saved, exported by `t2t.export`
and compared on other photographs. Finished models are kept when it is started again.
"""

import argparse
import copy
import gc
import json
import platform
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import onnxruntime
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import t2t
from t2t.atomic import write_atomically
from t2t.data.augment.pipeline import normalise
from t2t.data.sources import open_source
from t2t.models.config import ModelConfig
from t2t.models.create import create_model
from t2t.models.trained import PUBLISHED_MEAN, PUBLISHED_STD, TrainedModel
from t2t.models.vit import VisionTransformer
from t2t.models.zoo import CONFIGS, ZOO
from t2t.serving.predictor import Predictor

STEPS = 3
BATCH = 4
NUM_COMPARED = 8
LARGE = 200_000_000
HEADS = ("head.weight", "fc.weight", "classifier.weight")
POSITIONS = (
    *("none", "sinusoid", "sinusoid_2d", "learned_1d", "learned_2d", "relative"),
    "fixed",
)


def cases() -> dict[str, tuple[ModelConfig | str, dict[str, Any]]]:
    """Each model of the zoo, smallest first, and T2T-ViT-7 with every positions."""
    by_size = sorted(ZOO, key=lambda name: ZOO[name].parameters)
    found: dict[str, tuple[ModelConfig | str, dict[str, Any]]] = {
        name: (ZOO[name].config or name, {}) for name in by_size
    }
    for kind in POSITIONS:
        for place in ("stem", "every_layer"):
            config = replace(
                CONFIGS["t2t_vit_7"], depth=2, positions=kind, positions_at=place
            )
            name = f"t2t_vit_7, 2 layers, positions={kind} at {place}"
            found[name] = (config, {"dynamic_image_size": True})
    for name in ("t2t_vit_7", "t2t_vit_t_14", "vit_small_16_linformer", "deit_tiny"):
        found[f"{name}, any image size"] = (
            CONFIGS[name],
            {"dynamic_image_size": True},
        )
    found["t2t_vit_7, with preprocessing"] = (
        CONFIGS["t2t_vit_7"],
        {"with_preprocessing": True},
    )
    return found


def perturb(model: nn.Module) -> None:
    """Moves every parameter away from its initial value, and enlarges the heads."""
    generator = torch.Generator().manual_seed(1)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if weight.ndim > 1 and "positions" not in name:
            weight.data.mul_(1 + 0.2 * noise)
        else:
            weight.data.add_(0.05 * noise)
        if name.endswith(HEADS):
            weight.data.mul_(5)


def average_statistics(model: nn.Module) -> None:
    """Makes batch norms average all steps; three are too few for a running mean."""
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.momentum = None


def train(model: nn.Module, images: Tensor, labels: Tensor) -> list[float]:
    """A few steps on photographs; the losses."""
    model.train()
    num_parameters = sum(weight.numel() for weight in model.parameters())
    if num_parameters > LARGE:
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.001)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    losses = []
    for step in range(STEPS):
        chosen = slice(step * BATCH, (step + 1) * BATCH)
        loss = F.cross_entropy(model(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(round(loss.item(), 4))
    model.eval()
    return losses


def float32_error(model: nn.Module, images: Tensor) -> float:
    """How far PyTorch itself in float32 is from float64."""
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(images.double())
        return float((model(images) - exact).abs().max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photos")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", nargs="*")
    arguments = parser.parse_args()
    source = open_source(arguments.photos, "all")
    num = STEPS * BATCH + NUM_COMPARED
    chosen = [round(k * (len(source) - 1) / (num - 1)) for k in range(num)]
    trained_on, compared = chosen[: STEPS * BATCH], chosen[STEPS * BATCH :]
    record = {"rows": []}
    if arguments.out.exists():
        record = json.loads(arguments.out.read_text())
    done = {row["model"] for row in record["rows"]}
    for name, (config, options) in cases().items():
        if name in done or (arguments.models and name not in arguments.models):
            continue
        row = measure(name, config, options, source, trained_on, compared)
        print(row, flush=True)
        record = {
            "command": "python benchmarks/export_parity.py PHOTOS",
            "photographs": f"{NUM_COMPARED} of ImageNet, not those of the steps",
            "weights": __doc__.split("\n\n")[2].replace("\n", " "),
            "torch": torch.__version__,
            "onnxruntime": onnxruntime.__version__,
            "processor": platform.processor() or platform.machine(),
            "largest_difference": max(
                [row["largest_difference"]]
                + [each["largest_difference"] for each in record["rows"]]
            ),
            "rows": [*record["rows"], row],
        }
        text = json.dumps(record, indent=1) + "\n"
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(arguments.out, text.encode())
        gc.collect()


def measure(
    name: str,
    config: ModelConfig | str,
    options: dict[str, Any],
    source: Any,
    trained_on: list[int],
    compared: list[int],
) -> dict[str, Any]:
    """One row: the model's steps and the largest difference of its export."""
    torch.manual_seed(0)
    if isinstance(config, str):
        model: Any = create_model(config)
        average_statistics(model)
        image_size, num_classes = ZOO[config].image_size, model.num_classes
    else:
        model = VisionTransformer(config)
        image_size, num_classes = config.image_size, config.num_classes
    perturb(model)
    shown = TrainedModel(
        model=nn.Identity(),
        name="",
        path="",
        class_names=(),
        image_size=image_size,
        channels=3,
        mean=PUBLISHED_MEAN,
        std=PUBLISHED_STD,
        crop_fraction=0.9,
        data=None,
    )
    predictor = Predictor(shown, "cpu")
    pixels = [predictor.model_input(source.read(index)) for index in trained_on]
    labels = torch.as_tensor(source.labels[trained_on]) % num_classes
    images = normalise(torch.cat(pixels), PUBLISHED_MEAN, PUBLISHED_STD)
    losses = train(model, images, labels)
    photographs = [source.read(index) for index in compared]
    pixels = [predictor.model_input(each) for each in photographs]
    error = float32_error(
        model, normalise(torch.cat(pixels), PUBLISHED_MEAN, PUBLISHED_STD)
    )
    extra = {
        **asdict(shown),
        "image_size": list(image_size),
        "mean": list(PUBLISHED_MEAN),
        "std": list(PUBLISHED_STD),
    }
    keep = ("image_size", "channels", "mean", "std", "crop_fraction")
    extra = {key: extra[key] for key in keep}
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "weights.safetensors"
        t2t.save(model, file, name=name.partition(",")[0], extra=extra)
        del model
        report = t2t.export(
            file,
            to="onnx",
            out=Path(folder) / "model.onnx",
            images=photographs,
            **options,
        )
        megabytes = round(report.megabytes, 1)
    parity = report.parity
    return {
        "model": name,
        "largest_difference": parity.largest_difference,
        "largest_output": parity.largest_output,
        "float32_error_of_pytorch": error,
        "output": report.metadata.output,
        "losses_of_the_steps": losses,
        "megabytes": megabytes,
        "seconds": round(time.perf_counter() - started, 1),
    }


if __name__ == "__main__":
    main()
