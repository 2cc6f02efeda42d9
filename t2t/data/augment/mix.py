"""Mixup and cutmix: a sample becomes a mixture of itself and its partner."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from t2t.data.augment.config import MixMode
from t2t.data.augment.erase import inside_box
from t2t.data.rng import CounterRng
from t2t.shapes import Images, Labels


class Mixture(NamedTuple):
    """The share of its pixels and of its label that each sample keeps.

    Inside the cut, a box of (top, bottom, left, right), it keeps nothing.
    """

    kept: Float[Tensor, "#batch 1"]
    cut: Int64[Tensor, "#batch 4"]
    label: Float[Tensor, "#batch 1"]

    def pixels(self, height: int, width: int) -> Float[Tensor, "#batch 1 height width"]:
        """The share that a sample keeps of each pixel."""
        is_cut = inside_box(self.cut, height, width)
        return torch.where(is_cut, 0.0, self.kept[:, :, None, None])


def partner(samples: Tensor, group: int | None = None) -> Tensor:
    """The samples in reversed order, as timm pairs them: first with last, and so on.

    With a group, each run of that many neighbours is reversed, so a sample's partner
    does not depend on how a batch is divided over processes.
    """
    return samples.unflatten(0, (-1, group or len(samples))).flip(1).flatten(0, 1)


def draw_mixture(
    rng: CounterRng,
    height: int,
    width: int,
    mixup: float,
    cutmix: float,
    probability: float = 1.0,
    switch: float = 0.5,
    mode: MixMode = "batch",
    group: int | None = None,
    even: bool = False,
) -> Mixture:
    """Draws mixup or cutmix as timm does: per sample, or one for each group.

    The default group is the whole batch. `mixup` and `cutmix` are the alphas of their
    beta distributions, 0 turns one off; with both on, `switch` is the probability of
    cutmix. Labels are mixed by the area of the box after clipping at the border. With
    `even`, the sides of boxes are rounded down to even numbers.
    """
    if mode == "batch":
        rng = rng.shared() if group is None else rng.every(group)
    if not (mixup > 0 and cutmix > 0):
        switch = float(cutmix > 0)
    places, apply, change = rng.uniform("mix", 4).split((2, 1, 1), 1)
    is_cutmix = change < switch
    alpha = torch.where(is_cutmix, cutmix or mixup, mixup or cutmix)
    kept = torch.where(apply < probability, rng.beta("mix.kept", alpha), 1.0)
    side = (1.0 - kept).sqrt()
    edges = []
    for size, place in zip((height, width), places.split(1, 1), strict=True):
        cut, centre = (size * side).long(), (size * place).long()
        edges += [(centre - cut // 2).clamp(0, size)]
        edges += [(centre + (cut + (0 if even else 1)) // 2).clamp(0, size)]
    box = torch.cat(edges, 1)
    area = (box[:, 1] - box[:, 0]) * (box[:, 3] - box[:, 2])
    label = torch.where(is_cutmix, 1.0 - area[:, None] / (height * width), kept)
    parts = (torch.where(is_cutmix, 1.0, kept), torch.where(is_cutmix, box, 0), label)
    if mode == "batch" and group is not None:
        return Mixture(*(part.repeat_interleave(group, 0) for part in parts))
    return Mixture(*parts)


def mix_images(images: Images, mixture: Mixture, group: int | None = None) -> Images:
    """The images mixed with their partners."""
    other = partner(images, group)
    kept = mixture.pixels(*images.shape[2:])
    return images * kept + other * (1.0 - kept)


def soft_targets(
    labels: Labels, num_classes: int, smoothing: float = 0.0
) -> Float[Tensor, "batch classes"]:
    """One-hot labels, with label smoothing."""
    classes = torch.arange(num_classes, device=labels.device)
    return smoothed(labels[:, None] == classes, smoothing)


def smoothed(targets: Tensor, smoothing: float) -> Float[Tensor, "batch classes"]:
    """One-hot or multi-hot targets with label smoothing, as timm's mixup smooths."""
    rest = smoothing / targets.shape[1]
    return torch.where(targets.bool(), 1.0 - smoothing + rest, rest)


def mix_targets(
    targets: Float[Tensor, "batch classes"], mixture: Mixture, group: int | None = None
) -> Float[Tensor, "batch classes"]:
    """The targets mixed with their partners'."""
    other = partner(targets, group)
    return targets * mixture.label + other * (1.0 - mixture.label)
