"""Calibration: whether 80 % of the predictions with a confidence of 80 % are right."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor

NUM_BINS = 15
MAX_LOGITS = 10**8
"""Logits that are kept at once: 100,000 images of 1,000 classes, 400 MB."""
TEMPERATURES = (0.02, 50.0)
"""Between these, the best temperature is searched."""

Logits = Float[Tensor, "images classes"]


@dataclass(frozen=True)
class HeldOut:
    """A temperature fitted on half of the images, and its effect on the other half."""

    temperature: float
    num_images: int
    """Images in the other half."""
    ece_before: float
    ece: float
    loss_before: float
    loss: float


@dataclass(frozen=True)
class Calibration:
    """How far confidence and accuracy differ, and the temperature that mends it."""

    ece: float
    """Expected calibration error in per cent, with `NUM_BINS` bins."""
    temperature: float | None = None
    """Divides the logits so that the loss on these images is smallest; None if there
    is no such temperature, as without mistakes, or too many logits."""
    held_out: HeldOut | None = None


def calibrate(
    confidence: Float[Tensor, " images"],
    is_hit: Bool[Tensor, " images"],
    labels: Int64[Tensor, " images"],
    logits: Logits | None = None,
) -> Calibration:
    """The calibration of predictions; without their logits, only its error."""
    ece = calibration_error(confidence, is_hit)
    if logits is None:
        return Calibration(ece)
    # Sources are often sorted by class, so every second image is half of each class.
    half = torch.arange(len(labels)) % 2 == 0
    fitted = best_temperature(logits[half], labels[half])
    held_out = None
    if fitted is not None and not half.all():
        held_out = effect_of(fitted, logits[~half], labels[~half])
    return Calibration(ece, best_temperature(logits, labels), held_out)


def calibration_error(
    confidence: Float[Tensor, " images"], is_hit: Bool[Tensor, " images"]
) -> float:
    """The expected calibration error in per cent.

    Of bins of equal width, the mean distance between accuracy and mean confidence,
    weighted by their numbers of images (Guo et al., 2017).
    """
    edges = torch.linspace(0, 1, NUM_BINS + 1, dtype=torch.float64)[1:-1]
    # A bin holds its upper edge, and not its lower one.
    bins = torch.bucketize(confidence.double(), edges)
    gaps = torch.zeros(NUM_BINS, dtype=torch.float64)
    gaps.index_add_(0, bins, is_hit.double() - confidence.double())
    return 100 * gaps.abs().sum().item() / len(confidence)


def effect_of(
    temperature: float, logits: Logits, labels: Int64[Tensor, " images"]
) -> HeldOut:
    """Loss and calibration error before and after dividing logits by a temperature."""
    losses, errors = [], []
    for divisor in (1.0, temperature):
        scaled = logits / divisor
        losses.append(F.cross_entropy(scaled, labels).item())
        confidence, predicted = scaled.softmax(1).max(1)
        errors.append(calibration_error(confidence, predicted == labels))
    return HeldOut(temperature, len(labels), errors[0], errors[1], losses[0], losses[1])


def best_temperature(logits: Logits, labels: Int64[Tensor, " images"]) -> float | None:
    """The temperature with the smallest loss; None if that is outside the range."""
    from scipy.optimize import brentq

    own = logits.gather(1, labels[:, None])[:, 0].double().mean().item()

    def slope(log_temperature: float) -> float:
        """The derivative of the loss by 1 / temperature, in which it is convex."""
        shares = (logits / math.exp(log_temperature)).softmax(1)
        return (shares * logits).sum(1).double().mean().item() - own

    low, high = map(math.log, TEMPERATURES)
    if not (slope(low) > 0 > slope(high)):
        return None
    return math.exp(brentq(slope, low, high, xtol=1e-4))
