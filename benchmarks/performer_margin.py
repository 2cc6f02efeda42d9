"""How far trained weights keep the Performer's denominator from the published epsilon.

    python benchmarks/performer_margin.py --data path/to/cifar10 --out rows.json

Of the built-in model on CIFAR-10's test images, in float64: the denominator of every
query in both token transformers, and how much logits and predictions change with the
published formula, which adds 1e-8 to it.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import torch
from cifar_images import first_images
from kept_rows import keep_rows
from torch import Tensor

import t2t
from t2t.models import tokenizers
from t2t.ops.performer import performer_attention, performer_published


def denominators(query: Tensor, key: Tensor, features: Tensor) -> Tensor:
    """φ(q)·Σφ(k) of every query, without the epsilon."""

    def exponent(x: Tensor) -> Tensor:
        return x @ features.T - x.square().sum(-1, keepdim=True) / 2

    mass = exponent(key).logsumexp(1, keepdim=True)
    return (exponent(query) + mass).logsumexp(-1).exp() / features.shape[0]


@torch.no_grad()
def logits_by(
    attend: Callable[..., Tensor], model: torch.nn.Module, images: Tensor
) -> Tensor:
    """The model's logits with another way to compute the Performer's attention."""
    with patch.object(tokenizers, "performer_attention", attend):
        return torch.cat([model(part) for part in images.split(50)])


def main() -> None:
    """Measures, prints and keeps the rows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    model = t2t.load("builtin").double()
    images, _ = first_images(given.data, given.images)
    found: list[list[Tensor]] = [[], []]

    def watched(query: Tensor, key: Tensor, value: Tensor, features: Tensor) -> Tensor:
        wide = denominators(query, key, features.double())
        found[sum(map(len, found)) % 2].append(wide.flatten())
        return performer_attention(query, key, value, features)

    ours = logits_by(watched, model, images)
    published = logits_by(performer_published, model, images)
    rows: list[dict[str, object]] = [
        {
            "token_transformer": number,
            "smallest_denominator": float(f"{values.min().item():.3g}"),
            "median_denominator": float(f"{values.median().item():.3g}"),
        }
        for number, values in enumerate(map(torch.cat, found), start=1)
    ]
    error = (ours - published).abs().max() / published.abs().max()
    changed = int((ours.argmax(1) != published.argmax(1)).sum())
    rows.append(
        {
            "images": len(images),
            "logits_differ_by": float(f"{error.item():.3g}"),
            "predictions_changed": changed,
        }
    )
    for row in rows:
        print(row)
    keep_rows(given.out, rows)


if __name__ == "__main__":
    main()
