"""Compares what an exported file gives with what PyTorch gives, on real images."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from t2t.deployment.check_images import CheckImages
from t2t.errors import UserError

TOLERANCE = 1e-4
"""Largest difference in float32, relative to the largest output if that is above 1."""


@dataclass(frozen=True)
class Parity:
    """How far an exported file is from PyTorch."""

    largest_difference: float
    largest_output: float
    images: str
    """The images that were compared."""

    def __str__(self) -> str:
        if self.largest_difference == 0:
            return (
                f"equals PyTorch exactly (largest output {self.largest_output:.3g}) on "
                f"{self.images}"
            )
        return (
            f"differs from PyTorch by at most {self.largest_difference:.1e} (largest "
            f"output {self.largest_output:.3g}) on {self.images}"
        )


def check_parity(
    what: str,
    run: Callable[[Tensor], np.ndarray],
    reference: Callable[[Tensor], Tensor],
    images: CheckImages,
) -> Parity:
    """Runs both on all images, one alone and the others as a batch."""
    differences, largest = [0.0], [0.0]
    for batch in batches_of(images.batches):
        expected = reference(batch).float().numpy()
        found = np.asarray(run(batch))
        if not np.isfinite(expected).all():
            raise UserError(
                "The model outputs NaN or infinity on these images: its weights are "
                "damaged, so it is not exported."
            )
        if found.shape != expected.shape or not np.isfinite(found).all():
            raise UserError(f"{what} gives other shapes, or NaN: it is not exported.")
        differences.append(float(np.abs(found - expected).max()))
        largest.append(float(np.abs(expected).max()))
    parity = Parity(max(differences), max(largest), images.origin)
    if not parity.largest_difference <= TOLERANCE * max(1.0, parity.largest_output):
        raise UserError(
            f"{what} is not exported: it {parity}, and {TOLERANCE:g} (relative to the "
            "largest output, if above 1) is allowed."
        )
    return parity


def batches_of(batches: Sequence[Tensor]) -> list[Tensor]:
    """The first image alone, since graphs may depend on the batch, then the rest.

    A single image is also run as a batch of two.
    """
    return [part for batch in batches for part in (batch[:1], several(batch))]


def several(batch: Tensor) -> Tensor:
    """The images after the first one; if there is none, that one twice."""
    return batch[1:] if len(batch) > 1 else batch[:1].expand(2, -1, -1, -1)
