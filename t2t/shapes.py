"""Shapes of the tensors that the package passes around."""

from jaxtyping import Float, Integer, UInt8
from torch import Tensor

Images = Float[Tensor, "batch channels height width"]
Pixels = UInt8[Tensor, "batch channels height width"]
FeatureMap = Float[Tensor, "batch channels rows columns"]
Tokens = Float[Tensor, "batch tokens dim"]
Logits = Float[Tensor, "batch classes"]
Labels = Integer[Tensor, "batch"]
