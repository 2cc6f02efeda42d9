"""MoCo v3: a view finds a momentum teacher's output for the other view of its image."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from t2t.errors import require
from t2t.shapes import Images
from t2t.tasks.base import TaskContext
from t2t.tasks.heads import Features, MomentumTeacher, mlp
from t2t.tasks.processes import own_rows, rows_of_all
from t2t.tasks.two_views import TaughtTwoViews, TeacherArgs, similarities


@dataclass(frozen=True, kw_only=True)
class MoCoV3Args(TeacherArgs):
    """Settings of MoCo v3."""

    temperature: float = 0.2
    """Divides the cosines; lower ones weigh similar images more."""

    def __post_init__(self) -> None:
        """Checks the numbers."""
        super().__post_init__()
        require("task_args.temperature", self.temperature, 0.001)


class MoCoV3(TaughtTwoViews):
    """Cross-entropy of finding the teacher's output among those of the batch."""

    Args = MoCoV3Args
    needs_whole_batch = True

    def __init__(self, model: nn.Module, context: TaskContext, args: Any) -> None:
        super().__init__(model, context, args)
        hidden, out = args.hidden_dim, args.output_dim
        self.projector = mlp([self.width, hidden, hidden, out], last_norm=True)
        self.predictor = mlp([out, hidden, out], last_norm=True)
        self.teacher = MomentumTeacher(model, self.projector)

    def project(self, features: Features) -> Features:
        """The queries."""
        queries: Features = self.predictor(self.projector(features))
        return queries

    def compare(
        self, outputs: Sequence[Features], images: Sequence[Images]
    ) -> Float[Tensor, " batch"]:
        """The loss of every image, both views added."""
        first, second = (rows_of_all(each.float()) for each in self.teacher(images))
        temperature = self.args.temperature
        return info_nce(outputs[0], second, temperature) + info_nce(
            outputs[1], first, temperature
        )


def info_nce(
    queries: Features, keys: Features, temperature: float
) -> Float[Tensor, " batch"]:
    """The cross-entropy of a query's key among the keys of all processes.

    Twice the temperature keeps the size of the gradient, as published.
    """
    logits = similarities(queries, keys, temperature)
    losses = F.cross_entropy(logits, own_rows(queries), reduction="none")
    return 2 * temperature * losses
