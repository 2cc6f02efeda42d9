"""k nearest neighbours, to score features without training anything."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from t2t.shapes import Labels

NUM_NEIGHBOURS = 20
TEMPERATURE = 0.07
"""Temperature of the neighbours' weights, as in DINO."""
MAX_IMAGES = 10_000
CHUNK = 1024


def leave_one_out_knn(
    features: Float[Tensor, "images width"], labels: Labels
) -> Bool[Tensor, " images"]:
    """Whether each image's class wins the vote of its nearest other images.

    Neighbours vote with exp(cosine / temperature). With many images, evenly spaced ones
    are used.
    """
    step = -(-len(features) // MAX_IMAGES)
    features, labels = features[::step], labels[::step]
    num_neighbours = min(NUM_NEIGHBOURS, len(features) - 1)
    if num_neighbours < 1:
        return torch.zeros_like(labels, dtype=torch.bool)
    features = F.normalize(features.float(), dim=1)
    # One-hot rows and a product, since adding by index is not deterministic on a GPU.
    classes = F.one_hot(labels).float()
    hits = []
    for start in range(0, len(features), CHUNK):
        part = features[start : start + CHUNK]
        cosines = part @ features.T
        own = torch.arange(len(part), device=part.device)
        cosines[own, start + own] = -torch.inf
        nearest, indices = cosines.topk(num_neighbours, dim=1)
        weights = (nearest / TEMPERATURE).exp()
        votes = torch.einsum("in,inc->ic", weights, classes[indices])
        hits.append(votes.argmax(1) == labels[start : start + CHUNK])
    return torch.cat(hits)
