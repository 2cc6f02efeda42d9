"""The dropout options of timm."""

from typing import TYPE_CHECKING, Any

import torch.nn.functional as F
from torch import Tensor, nn

from t2t.errors import UserError, require
from t2t.models.blocks import Block
from t2t.models.layers import Mlp, SelfAttention

if TYPE_CHECKING:
    from t2t.models.encoders import Encoder


class DropoutLinear(nn.Linear):
    """A linear layer with the parameters of another, and dropout before and after."""

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
        mixer: Any = block.mixer
        mlp: Any = block.mlp
        if attn_drop_rate or isinstance(mixer, SelfAttention):
            check_part(mixer, SelfAttention, "attn_drop_rate")
            mixer.attn.attn_drop.p = attn_drop_rate
        if proj_drop_rate:
            check_part(mixer, SelfAttention, "proj_drop_rate")
            check_part(mlp, Mlp, "proj_drop_rate")
            mixer.proj = DropoutLinear(mixer.proj, after=proj_drop_rate)
            mlp.reduce = DropoutLinear(
                mlp.reduce, before=proj_drop_rate, after=proj_drop_rate
            )


def check_part(part: Any, kind: type, option: str) -> None:
    """Raises an error for a registered part, which has dropout of its own if any."""
    if not isinstance(part, kind):
        raise UserError(
            f"{option} cannot be set in a {type(part).__name__}, which is not t2t's "
            "own; leave it out."
        )
