"""BYOL: a view predicts a momentum teacher's output for the other view."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from t2t.shapes import Images
from t2t.tasks.base import TaskContext
from t2t.tasks.heads import Features, MomentumTeacher, mlp
from t2t.tasks.two_views import TaughtTwoViews, TeacherArgs


@dataclass(frozen=True, kw_only=True)
class BYOLArgs(TeacherArgs):
    """Settings of BYOL."""

    momentum: float = 0.996
    """The teacher's momentum at the start; it rises to 1 along a cosine."""


class BYOL(TaughtTwoViews):
    """The squared distance of normalized predictions to normalized targets."""

    Args = BYOLArgs

    def __init__(self, model: nn.Module, context: TaskContext, args: Any) -> None:
        super().__init__(model, context, args)
        hidden, out = args.hidden_dim, args.output_dim
        self.projector = mlp([self.width, hidden, out])
        self.predictor = mlp([out, hidden, out])
        self.teacher = MomentumTeacher(model, self.projector)

    def project(self, features: Features) -> Features:
        """The predictions of the teacher's outputs."""
        predicted: Features = self.predictor(self.projector(features))
        return predicted

    def compare(
        self, outputs: Sequence[Features], images: Sequence[Images]
    ) -> Float[Tensor, " batch"]:
        """The loss of every image, both views added."""
        first, second = self.teacher(images)
        return squared_distance(outputs[0], second) + squared_distance(
            outputs[1], first
        )


def squared_distance(first: Features, second: Features) -> Float[Tensor, " batch"]:
    """The squared distance of rows on the unit sphere."""
    return 2 - 2 * F.cosine_similarity(first.float(), second.float(), dim=1)
