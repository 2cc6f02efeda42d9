"""SimCLR: a view finds the other view of its image among all images."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from t2t.errors import require
from t2t.shapes import Images
from t2t.tasks.base import TaskContext
from t2t.tasks.heads import Features, mlp
from t2t.tasks.processes import own_rows, rows_of_all
from t2t.tasks.two_views import TwoViewArgs, TwoViews, similarities


@dataclass(frozen=True, kw_only=True)
class SimCLRArgs(TwoViewArgs):
    """Settings of SimCLR."""

    temperature: float = 0.2
    """Divides the cosines; lower ones weigh similar images more."""
    num_layers: int = 2
    """Layers of the projection head."""

    def __post_init__(self) -> None:
        """Checks the numbers."""
        super().__post_init__()
        require("task_args.temperature", self.temperature, 0.001)
        require("task_args.num_layers", self.num_layers, 1)


class SimCLR(TwoViews):
    """Cross-entropy of finding an image's other view among all views of the batch."""

    Args = SimCLRArgs
    needs_whole_batch = True

    def __init__(self, model: nn.Module, context: TaskContext, args: Any) -> None:
        super().__init__(model, context, args)
        hidden = [args.hidden_dim] * (args.num_layers - 1)
        self.projector = mlp([self.width, *hidden, args.output_dim])

    def compare(
        self, outputs: Sequence[Features], images: Sequence[Images]
    ) -> Float[Tensor, " batch"]:
        """The loss of both views of every image."""
        first, second = outputs
        return nt_xent(first, second, self.args.temperature)


def nt_xent(
    first: Features, second: Features, temperature: float
) -> Float[Tensor, " batch"]:
    """The mean loss of an image's two views among the views of all processes."""
    own = own_rows(first)
    all_first, all_second = rows_of_all(first.float()), rows_of_all(second.float())
    losses = [
        find_partner(first, all_second, all_first, own, temperature),
        find_partner(second, all_first, all_second, own, temperature),
    ]
    return (losses[0] + losses[1]) / 2


def find_partner(
    views: Features,
    partners: Features,
    siblings: Features,
    own: Tensor,
    temperature: float,
) -> Float[Tensor, " batch"]:
    """The cross-entropy of a view's partner among all views but itself."""
    across = similarities(views, partners, temperature)
    within = similarities(views, siblings, temperature)
    numbers = torch.arange(within.shape[1], device=within.device)
    within = within.masked_fill(numbers == own[:, None], -torch.inf)
    return F.cross_entropy(torch.cat([across, within], 1), own, reduction="none")
