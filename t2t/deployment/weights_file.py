"""Writes weights with all that `t2t.load` needs, and loads them again."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from t2t.deployment.accuracy import Runner
from t2t.deployment.check_images import CheckImages
from t2t.deployment.graph import ExportedGraph
from t2t.deployment.parity import Parity, check_parity
from t2t.models.trained import TrainedModel
from t2t.models.weights import load, save


def write_and_compare(trained: TrainedModel, file: Path, images: CheckImages) -> Parity:
    """Saves the weights, loads them again and compares the logits."""
    save(
        trained.model,
        file,
        name=trained.name,
        class_names=trained.class_names,
        extra=extra_of(trained),
    )
    graph, run = logits_of(trained, load(file))
    what = f"{trained.name} as safetensors"
    return check_parity(what, run, graph.outputs_for, images)


def logits_of(trained: TrainedModel, again: nn.Module) -> tuple[ExportedGraph, Runner]:
    """The graph of a model, and a runner of the same model loaded again."""
    graph = ExportedGraph(trained, with_preprocessing=False, multilabel=False)
    network = again.float().eval()

    @torch.inference_mode()
    def run(pixels: Tensor) -> np.ndarray:
        logits: Tensor = network(graph.inputs_for(pixels))
        return logits.numpy()

    return graph, run


def extra_of(trained: TrainedModel) -> dict[str, Any]:
    """The preprocessing and the origin, as our files have them."""
    return {
        "image_size": list(trained.image_size),
        "channels": trained.channels,
        "mean": list(trained.mean),
        "std": list(trained.std),
        "crop_fraction": trained.crop_fraction,
        "data": trained.data,
        "seed": trained.seed,
        "labels": dict(trained.labels),
        "multilabel": trained.is_multilabel,
        "evaluated_on": trained.evaluated_on,
    }
