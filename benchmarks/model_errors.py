"""Errors of whole models in bf16 beside float32: by our kernels, and by torch's own.

    python benchmarks/model_errors.py --out errors.json

Models whose blocks are fused, and those whose attention alone has a kernel: other
mixers, heads and sizes of images. Errors are norms over norms, of the outputs and of
all gradients together, without dropout. The fused blocks sum in bf16 what torch's
autocast sums in float32.
"""

import argparse
import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from kept_rows import keep_rows
from torch import Tensor, nn

import t2t
from t2t.ops import availability, operators

SMALL = ("t2t_vit_7_32", 32)
CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "plain": (*SMALL, {}),
    "SE": (*SMALL, {"mixer": "attention_se"}),
    "ghost": (*SMALL, {"mixer": "ghost", "mlp": "ghost"}),
    "heads of 16": (*SMALL, {"num_heads": 16}),
    "heads of 32": (*SMALL, {"num_heads": 8}),
    "relative positions": (*SMALL, {"positions": "relative"}),
    "384 px": ("t2t_vit_7", 384, {}),
    "512 px": ("t2t_vit_7", 512, {}),
    "14 blocks, SE": ("t2t_vit_14_se", 224, {}),
    "14 blocks, heads of 12": ("t2t_vit_14_resnext", 224, {}),
    "DeiT at 512 px": ("deit_tiny", 512, {}),
}


def results(
    model: nn.Module, images: Tensor, labels: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Outputs and all gradients, in float32."""
    model.zero_grad()
    with torch.autocast(images.device.type, dtype, enabled=dtype != torch.float32):
        logits = model(images)
    F.cross_entropy(logits.float(), labels).backward()
    grads = [weight.grad.flatten() for weight in model.parameters()]
    return logits.detach().float(), torch.cat(grads)


def measure(name: str, device: str) -> dict[str, Any]:
    """A row: errors of outputs and gradients, and how often attention's kernels ran."""
    model_name, size, model_args = CASES[name]
    torch.manual_seed(0)
    model_args = model_args | {"num_classes": 10, "image_size": (size, size)}
    model = t2t.create_model(model_name, token_dropout=0.0, **model_args).to(device)
    batch = 64 if size == 32 else 8
    images = torch.randn(batch, 3, size, size, device=device)
    labels = torch.randint(10, (batch,), device=device)
    wanted = results(model, images, labels, torch.float32)
    with patch.object(
        operators, "packed_attention", wraps=operators.packed_attention
    ) as counted:
        ours = results(model, images, labels, torch.bfloat16)
    with patch.object(availability, "HAS_TRITON", False):
        torchs = results(model, images, labels, torch.bfloat16)
    row: dict[str, Any] = {"case": name, "model": model_name, "image_size": size}
    for by, found in (("ours", ours), ("torch", torchs)):
        pairs = zip(("output", "gradient"), found, wanted, strict=True)
        for what, one, two in pairs:
            row[f"{what}_error_{by}"] = float((one - two).norm() / two.norm())
    return row | {"attention_calls": counted.call_count}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="where rows are written as JSON")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    rows = []
    for name in CASES:
        rows.append(measure(name, options.device))
        print(json.dumps(rows[-1]), flush=True)
    keep_rows(options.out, rows)


if __name__ == "__main__":
    main()
