"""One tokens-to-token step on a CPU, where nobody asks for gradients."""

import torch
import torch.nn.functional as F
from torch import Tensor

from t2t.ops.performer_step import StepWeights
from t2t.ops.prepared import prepared
from t2t.ops.soft_split import Split, window_statistics
from t2t.shapes import FeatureMap


def inference_step(
    image: FeatureMap, split: Split, weights: StepWeights, eps: float
) -> FeatureMap:
    """What `performer_step_reference` gives as its first result.

    `soft_split` and `performer_attention` say why the parts are what they are. Folded
    into the convolution are the random features, of which queries leave nothing else;
    into the sum over the keys, the projection behind the attention.
    """
    kernel, offset = prepared(folded_kernel, weights, image.shape[1], split.kernel)
    image = image.contiguous(memory_format=torch.channels_last)
    product = F.conv2d(image, kernel, None, split.stride, split.padding)
    _, rstd = window_statistics(image, split, eps)
    tokens = product.permute(0, 2, 3, 1).flatten(1, 2)
    tokens = torch.addcmul(offset, tokens, rstd.flatten(1)[..., None], out=tokens)

    dim, num_features = len(weights.proj), len(weights.features)
    query_exponent, key_exponent, key, value = tokens.split(
        [num_features, num_features, dim, dim], dim=-1
    )
    key_exponent = key_exponent - key.square().sum(-1, keepdim=True).mul_(0.5)
    largest = key_exponent.amax(1, keepdim=True)
    by_feature = key_exponent.sub_(largest).exp_()
    mass = by_feature.sum(1, keepdim=True)
    by_query = torch.softmax(query_exponent + (largest + mass.log()), dim=-1)
    mean_values = by_feature.transpose(1, 2) @ value / mass.transpose(1, 2)
    tokens = torch.baddbmm(
        value + weights.proj_bias, by_query, mean_values @ weights.proj.T
    )

    normed = F.layer_norm(tokens, (dim,), weights.gain, weights.shift, eps)
    hidden = torch.ops.aten.gelu_(F.linear(normed, weights.fc1, weights.fc1_bias))
    tokens += F.linear(hidden, weights.fc2, weights.fc2_bias)
    return tokens.transpose(1, 2).unflatten(2, product.shape[-2:])


def folded_kernel(
    weights: StepWeights, channels: int, side: int
) -> tuple[Tensor, Tensor]:
    """Kernel and offset for queries' and keys' features, keys and values."""
    key, query, value = weights.kqv.chunk(3)
    features = weights.features
    rows = torch.cat([features @ query, features @ key, key, value])
    key_bias, query_bias, value_bias = weights.kqv_bias.chunk(3)
    bias = torch.cat([features @ query_bias, features @ key_bias, key_bias, value_bias])
    offset = torch.addmv(bias, rows, weights.window_shift)
    rows = rows * weights.window_gain
    rows = rows - rows.mean(dim=1, keepdim=True)
    kernel = rows.unflatten(1, (channels, side, side))
    return kernel.contiguous(memory_format=torch.channels_last), offset
