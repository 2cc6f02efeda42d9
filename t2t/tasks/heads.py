"""Heads on an encoder's features for comparing views, and their momentum teacher."""

import copy
import math
from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from t2t.errors import UserError
from t2t.shapes import Images
from t2t.tasks.base import update_moving_average
from t2t.tasks.processes import BatchNorm

Features = Float[Tensor, "batch width"]


def feature_width(encoder: nn.Module, name: str) -> int:
    """The width of the features that a model without classes returns."""
    width = getattr(encoder, "head_hidden_size", None)
    width = width or getattr(encoder, "num_features", None)
    if not isinstance(width, int):
        raise UserError(
            f"{name} does not name the width of its features (num_features), which "
            "this task needs; choose a model of `t2t models` or of timm."
        )
    return width


def mlp(widths: Sequence[int], *, last_norm: bool = False) -> nn.Sequential:
    """Linear layers with batch norms and ReLUs between them.

    With `last_norm`, a batch norm without scale and shift also follows the last one.
    """
    layers: list[nn.Module] = []
    for number, (before, after) in enumerate(pairwise(widths), start=2):
        is_last = number == len(widths)
        has_norm = not is_last or last_norm
        layers.append(nn.Linear(before, after, bias=not has_norm))
        if has_norm:
            layers.append(BatchNorm(after, affine=not is_last))
        if not is_last:
            layers.append(nn.ReLU(inplace=True))
    return nn.Sequential(*layers)


class PrototypeHead(nn.Module):
    """Cosines between the output of an MLP and prototypes, as in DINO."""

    def __init__(
        self, width: int, hidden_dim: int, bottleneck_dim: int, num_prototypes: int
    ) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(width, hidden_dim),
            nn.GELU(),
            nn.Linear(hidden_dim, hidden_dim),
            nn.GELU(),
            nn.Linear(hidden_dim, bottleneck_dim),
        )
        self.prototypes = nn.Linear(bottleneck_dim, num_prototypes, bias=False)
        for part in self.mlp:
            if isinstance(part, nn.Linear):
                nn.init.trunc_normal_(part.weight, std=0.02)
                nn.init.zeros_(part.bias)

    def forward(
        self, features: Features, trains_prototypes: Tensor | None = None
    ) -> Float[Tensor, "batch prototypes"]:
        """The cosines; prototypes get no gradient unless the tensor is true."""
        weight = self.prototypes.weight
        if trains_prototypes is not None:
            weight = torch.where(trains_prototypes, weight, weight.detach())
        return F.linear(
            F.normalize(self.mlp(features), dim=1), F.normalize(weight, dim=1)
        )


class MomentumTeacher(nn.Module):
    """A moving average of an encoder and its head, which gets no gradient."""

    def __init__(self, encoder: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.encoder, self.head = copy.deepcopy(encoder), copy.deepcopy(head)
        self.requires_grad_(False)

    def train(self, mode: bool = True) -> "MomentumTeacher":
        """Sets the mode of batch norms only: a teacher drops nothing."""
        super().train(False)
        for part in self.modules():
            if isinstance(part, _BatchNorm):
                part.train(mode)
        return self

    @torch.no_grad()
    def forward(self, views: Sequence[Images]) -> list[Features]:
        """The outputs for each view."""
        features = self.encoder(torch.cat([*views])).chunk(len(views))
        return [self.head(each) for each in features]

    def follow(
        self, encoder: nn.Module, head: nn.Module, momentum: Tensor, applied: Tensor
    ) -> None:
        """Moves the average towards the weights."""
        update_moving_average(self.encoder, encoder, momentum, applied)
        update_moving_average(self.head, head, momentum, applied)


def momentum_at(progress: Tensor, start: float) -> Tensor:
    """A teacher's momentum: from `start` to 1 along a cosine."""
    return 1 - (1 - start) * (1 + torch.cos(math.pi * progress)) / 2
