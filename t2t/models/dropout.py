"""Adds the dropout of timm's options to a model that was built without."""

from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor, nn

from t2t.errors import require
from t2t.models.blocks import Block

if TYPE_CHECKING:
    from t2t.models.encoders import Encoder


class DropoutLinear(nn.Linear):
    """A linear layer with another's parameters, and dropout before and after it."""

    def __init__(
        self, linear: nn.Linear, *, before: float = 0.0, after: float = 0.0
    ) -> None:
        super().__init__(linear.in_features, linear.out_features, device="meta")
        self.weight, self.bias = linear.weight, linear.bias
        self.before, self.after = before, after

    def forward(self, x: Tensor) -> Tensor:
        output = super().forward(F.dropout(x, self.before, self.training))
        return F.dropout(output, self.after, self.training)


def set_dropout(
    encoder: "Encoder",
    *,
    pos_drop_rate: float,
    proj_drop_rate: float,
    attn_drop_rate: float,
) -> None:
    """Sets dropout where timm's ViT has it: positions, projections, attention."""
    rates = {
        "pos_drop_rate": pos_drop_rate,
        "proj_drop_rate": proj_drop_rate,
        "attn_drop_rate": attn_drop_rate,
    }
    for name, rate in rates.items():
        require(name, rate, 0, below=1)
    encoder.positions.drop.p = pos_drop_rate
    for block in encoder.blocks:
        assert isinstance(block, Block)
        block.mixer.attn.attn_drop.p = attn_drop_rate
        if proj_drop_rate:
            block.mixer.proj = DropoutLinear(block.mixer.proj, after=proj_drop_rate)
            block.mlp.reduce = DropoutLinear(
                block.mlp.reduce, before=proj_drop_rate, after=proj_drop_rate
            )
