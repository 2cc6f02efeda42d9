"""Linear layers whose weights lie ready for the product on a CPU."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from t2t.ops.prepared import keeps_preparations, prepared

HAS_MKL = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()

# A product of few rows only reads its weight once, in whatever order it lies.
FEWEST_ROWS = 16


def linear_reference(
    x: Float[Tensor, "*rows dim"],
    weight: Float[Tensor, "out_dim dim"],
    bias: Float[Tensor, " out_dim"] | None,
) -> Float[Tensor, "*rows out_dim"]:
    """The linear layer as torch has it."""
    return F.linear(x, weight, bias)


def linear(
    x: Float[Tensor, "*rows dim"],
    weight: Float[Tensor, "out_dim dim"],
    bias: Float[Tensor, " out_dim"] | None,
) -> Float[Tensor, "*rows out_dim"]:
    """The same by a packed copy of the weight, where preparations are in use.

    A copy serves one number of rows only and costs about four products, so it pays
    where images of one size come one by one. There are no gradients.
    """
    num_rows = x.numel() // x.shape[-1]
    if not (keeps_preparations(weight) and HAS_MKL and num_rows >= FEWEST_ROWS):
        return linear_reference(x, weight, bias)
    copy = prepared(packed, (weight,), num_rows)
    product: Tensor = torch.ops.mkl._mkl_linear(x, copy, weight, bias, num_rows)
    return product


def packed(weights: Sequence[Tensor], num_rows: int) -> Tensor:
    """A copy of the one weight for MKL's products with so many rows."""
    (weight,) = weights
    copy: Tensor = torch.ops.mkl._mkl_reorder_linear_weight(weight.detach(), num_rows)
    return copy
