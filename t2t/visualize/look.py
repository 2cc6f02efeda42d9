"""`t2t.look`: what models see in images."""

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from t2t.analysis.attention_distance import attention_distance, uniform_distance
from t2t.analysis.attention_maps import AttentionLayer, Map, attention_maps_with_notes
from t2t.analysis.attention_rollout import (
    attention_from_output,
    has_rollout,
    num_tokens_read,
    rollout,
)
from t2t.analysis.feature_maps import FeatureLayer, LayerStatistics, feature_layers
from t2t.analysis.first_layer import (
    FirstFilters,
    PositionMaps,
    first_filters,
    position_maps,
)
from t2t.data.decoding.headers import DEFAULT_MAX_PIXELS
from t2t.errors import UserError, on_one_line
from t2t.models.config import ModelConfig, Size
from t2t.models.create import as_size
from t2t.models.trained import load_trained
from t2t.models.vit import VisionTransformer
from t2t.serving.predictor import ImageLike, Predictor, name_of
from t2t.shapes import Images
from t2t.training.evaluation.evaluate_source import Progress, no_progress
from t2t.training.threads import use_free_cores
from t2t.visualize.data import (
    ChannelMaps,
    HeadDistances,
    HeadMaps,
    ImageLook,
    Look,
    ModelLook,
)

MAX_DRAWN = 6
"""Images with pictures of their own; numbers are over all images."""
MAX_ROWS = 6
"""Layers in a picture of feature maps or rollouts, evenly spaced."""
MAX_CHANNELS = 12
"""Channels in a picture of feature maps, evenly spaced."""

Weights = str | os.PathLike[str]


def look(
    weights: Weights,
    images: ImageLike | Sequence[ImageLike],
    *,
    compare: Weights | Iterable[Weights] = (),
    model: str | ModelConfig | None = None,
    image_size: int | Size | None = None,
    device: str | None = None,
    max_pixels: int = DEFAULT_MAX_PIXELS,
    progress: Progress = no_progress,
) -> Look:
    """What a model, and those to compare it with, see in some images.

    `weights` and `compare` are runs, files, `builtin` or names of timm models;
    `image_size` replaces theirs. `write(folder)` of the result makes the report.
    """
    several = list(images) if isinstance(images, list | tuple) else [images]
    if not several:
        raise UserError("No images are given; give one or more.")
    others = [compare] if isinstance(compare, str | os.PathLike) else list(compare)
    size = None if image_size is None else as_size(image_size)
    skipped: dict[str, str] = {}
    looks = []
    # All are opened first: a look may take minutes before the last one is needed.
    models = [
        load_trained(each, model=named, needs_head=False, image_size=size)
        for each, named in [(weights, model), *((other, None) for other in others)]
    ]
    total = len(several) * len(models)
    for number, trained in enumerate(models):
        predictor = Predictor(trained, device, max_pixels)
        with use_free_cores(predictor.device):
            so_far = partial(advance, progress, number * len(several), total)
            looks.append(look_with(predictor, several, skipped, so_far))
    return Look(
        models=tuple(looks),
        num_images=len(several) - len(skipped),
        skipped=tuple(skipped.values()),
    )


def advance(progress: Progress, before: int, total: int, done: int) -> None:
    """Reports images done of all images of all models."""
    progress(before + done, total)


@torch.inference_mode()
def look_with(
    predictor: Predictor,
    images: Sequence[ImageLike],
    skipped: dict[str, str],
    progress: Callable[[int], None],
) -> ModelLook:
    """What one model sees in all images; adds unreadable ones to `skipped`."""
    network, trained = predictor.model, predictor.trained
    statistics = LayerStatistics()
    distances: dict[str, list[HeadDistances]] = {}
    notes: dict[str, None] = dict.fromkeys(trained.notes)
    drawn: list[ImageLook] = []
    for number, image in enumerate(images):
        name = name_of(image, number)
        progress(number)
        try:
            pixels = predictor.model_input(image)
        except UserError as error:
            skipped[name] = str(error)
            continue
        normalised = predictor.normalised(pixels)
        features = feature_layers(network, normalised)
        check_finite(features, trained.path)
        statistics.add(features)
        maps, left_out = attention_maps_with_notes(
            network, normalised, token_transformers=True
        )
        notes.update(dict.fromkeys(left_out))
        for layer in maps:
            found = distances_of(layer, trained.image_size)
            distances.setdefault(layer.name, []).append(found)
        if len(drawn) < MAX_DRAWN:
            drawn.append(
                ImageLook(
                    name=short_name(name),
                    pixels=pixels.cpu(),
                    prediction=prediction_of(predictor, normalised),
                    **pictures_of(network, features, maps),
                )
            )
    if not drawn:
        raise UserError(next(iter(skipped.values())))
    positions = position_maps(network, trained.image_size)
    filters = first_filters(network)
    notes.update(dict.fromkeys(absent(network, positions, filters, drawn[0])))
    return ModelLook(
        weights=trained.path,
        model=trained.name,
        image_size=trained.image_size,
        num_parameters=sum(each.numel() for each in network.parameters()),
        images=tuple(drawn),
        channels=statistics.channels(),
        norms=statistics.norms(),
        distances=tuple(mean_distances(each) for each in distances.values()),
        filters=filters,
        positions=positions,
        notes=tuple(notes),
    )


def pictures_of(
    network: nn.Module,
    features: Sequence[FeatureLayer],
    maps: Sequence[AttentionLayer],
) -> dict[str, Any]:
    """The maps that are drawn of one image."""
    return {
        "splits": split_layers(features),
        "features": tuple(map(channel_maps, evenly(features, MAX_ROWS))),
        "heads": tuple(head_maps(layer, network) for layer in maps),
        "rollouts": rollouts_of(maps, network),
    }


def check_finite(layers: Sequence[FeatureLayer], path: str) -> None:
    """Raises an error for NaN or infinity."""
    for layer in layers:
        if not layer.values.isfinite().all():
            raise UserError(
                f"{path} outputs NaN or infinity after {layer.name}: its weights are "
                "damaged; give other weights."
            )


def prediction_of(predictor: Predictor, image: Images) -> str:
    """The best class of an image and its probability."""
    names = predictor.readable_names
    logits = predictor.model(image).float()
    if not names or logits.shape != (1, len(names)):
        return ""
    probability, best = predictor.probabilities_of(logits)[0].max(0)
    return f"{on_one_line(names[int(best)])} {100 * float(probability):.1f} %"


def split_layers(features: Sequence[FeatureLayer]) -> tuple[FeatureLayer, ...]:
    """The layers before the blocks and the last one; all of a network in stages."""
    before = [each for each in features if not each.name.startswith("block")]
    last = [each for each in features[-1:] if each not in before]
    return (*before, *last)


def channel_maps(layer: FeatureLayer) -> ChannelMaps:
    """The maps of evenly spaced channels."""
    channels = evenly(range(len(layer.values)), MAX_CHANNELS)
    values = layer.values[channels].clone()
    return ChannelMaps(name=layer.name, channels=tuple(channels), values=values)


def evenly(items: Sequence[Any], most: int) -> list[Any]:
    """Up to `most` items, evenly spaced, with the first and the last."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def head_maps(layer: AttentionLayer, network: nn.Module) -> HeadMaps:
    """Where each head of a layer looks."""
    rows, columns = layer.grid
    num_read = num_tokens_read(network) if layer.is_block else 0
    middle = layer.num_prefix + (rows // 2) * columns + columns // 2
    from_middle = layer.weights[:, middle, layer.num_prefix :]
    from_middle = from_middle / from_middle.mean(1, keepdim=True).clamp(min=1e-30)
    return HeadMaps(
        name=layer.name,
        from_output=torch.stack(
            [
                attention_from_output(layer, num_read=num_read, head=head)
                for head in range(len(layer.weights))
            ]
        ),
        from_middle=from_middle.unflatten(1, layer.grid).clone(),
    )


def rollouts_of(
    maps: Sequence[AttentionLayer], network: nn.Module
) -> tuple[tuple[str, Map], ...]:
    """Rollouts up to evenly spaced blocks, if the model has them."""
    if not has_rollout(maps, network):
        return ()
    blocks = [each for each in maps if each.is_block]
    num_read = num_tokens_read(network)
    return tuple(
        (
            f"up to {blocks[depth].name}",
            rollout(maps, num_read=num_read, up_to=depth + 1),
        )
        for depth in evenly(range(len(blocks)), MAX_ROWS)
    )


def distances_of(layer: AttentionLayer, image_size: Size) -> HeadDistances:
    """The mean attention distances of a layer's heads."""
    return HeadDistances(
        name=layer.name,
        is_block=layer.is_block,
        heads=tuple(attention_distance(layer, image_size).tolist()),
        uniform=uniform_distance(layer.grid, image_size),
    )


def mean_distances(of_images: Sequence[HeadDistances]) -> HeadDistances:
    """The mean over images."""
    first = of_images[0]
    heads = torch.tensor([each.heads for each in of_images]).mean(0)
    return HeadDistances(
        name=first.name,
        is_block=first.is_block,
        heads=tuple(heads.tolist()),
        uniform=first.uniform,
    )


def absent(
    network: nn.Module,
    positions: PositionMaps | None,
    filters: FirstFilters | None,
    first: ImageLook,
) -> list[str]:
    """A sentence for each picture that does not exist for this model."""
    notes = []
    if positions is None:
        notes.append("It has no table of positions, so their similarity is not shown.")
    if filters is None:
        notes.append(
            "It has no convolution or soft split whose filters could be shown."
        )
    if first.heads and not first.rollouts:
        notes.append(
            "It has no attention rollout, which needs a map of every block over the "
            "same tokens."
        )
    if isinstance(network, VisionTransformer) and len(first.splits) == 2:
        notes.append("Its tokenizer is one step, so there are no splits in between.")
    return notes


def short_name(name: str) -> str:
    """The file name of an image."""
    return on_one_line(Path(name).name or name)
