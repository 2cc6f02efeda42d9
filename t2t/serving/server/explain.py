"""The evidence for a prediction, as JSON: attention, tokens and occlusion."""

import asyncio
import base64
import io
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from starlette.requests import Request
from starlette.responses import Response
from torch import Tensor

from t2t.analysis.attention_maps import AttentionLayer, attention_maps_with_notes
from t2t.analysis.attention_rollout import (
    attention_from_output,
    has_rollout,
    num_tokens_read,
    rollouts,
)
from t2t.analysis.occlusion import Occlusion
from t2t.analysis.token_maps import pca_colours, token_maps
from t2t.data.crops import CenterCrop
from t2t.data.decoding.decode import image_size
from t2t.models.vit import VisionTransformer
from t2t.serving.predictor import ClassProbability
from t2t.serving.server.problem import Problem, json_response
from t2t.serving.server.room import Room
from t2t.serving.server.service import Service, milliseconds, while_here
from t2t.serving.server.upload import busy, read_image
from t2t.shapes import FeatureMap, Images, Pixels

PARTS = ("attention", "tokens", "occlusion")
VIEW_SIDE = 448
"""Pixels of the longer side of the picture that is explained, at most."""
OCCLUSION_BATCH = 8
"""Images at a time: predictions wait for no more than these."""

Json = dict[str, Any]
Value = TypeVar("Value")


class Explainer:
    """Explains predictions of a service, a few at a time."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.predictor = service.predictor
        self.num_classes = len(service.trained.class_names)
        self.room = Room(
            service.options.max_explanations,
            lambda num: busy(2, f"{num} explanations are in progress"),
        )
        # The maps of a large model take half a gigabyte.
        self._one_set_of_maps = asyncio.Lock()

    async def explain(
        self, request: Request, top: int, index: int | None, parts: str
    ) -> Response:
        """The evidence in the upload for a class, by default the most probable."""
        wanted = self.check(index, parts)
        service = self.service
        with service.held.hold() as add:
            self.room.check()
            data = await read_image(request, service.options, add)
            with self.room.hold():
                return await while_here(request, self._reply(data, top, index, wanted))

    async def _reply(
        self, data: bytes, top: int, index: int | None, wanted: tuple[str, ...]
    ) -> Response:
        """The evidence as JSON; megabytes, so a thread writes it."""
        found = await self._explain(data, top, index, wanted)
        return await self.service.in_pool(lambda: json_response(found))

    def check(self, index: int | None, parts: str) -> tuple[str, ...]:
        """The parts that are asked for; refuses unknown ones, and unknown classes."""
        last = self.num_classes - 1
        if index is not None and index > last:
            raise Problem(
                400, f"class={index} is not allowed: classes are 0 to {last}."
            )
        wanted = tuple(part.strip() for part in parts.split(","))
        for part in wanted:
            if part not in PARTS:
                raise Problem(
                    400,
                    f"parts={part[:40]!a} is not allowed: give some of "
                    f"{', '.join(PARTS)}.",
                )
        return wanted

    async def _explain(
        self, data: bytes, top: int, index: int | None, wanted: tuple[str, ...]
    ) -> Json:
        started = time.perf_counter()
        service = self.service
        pixels = await service.in_pool(lambda: service.model_input(data))
        computed = await service.compute(pixels, self.num_classes)
        classes = computed.result
        explained = next(
            each for each in classes if index is None or each.index == index
        )
        reply: Json = {
            "predictions": service.classes_json(classes[:top]),
            "class": service.classes_json([explained])[0],
            **await service.in_pool(lambda: self.pictures(data, pixels)),
            "notes": [],
        }
        image = self.predictor.normalised(pixels.to(self.predictor.device))
        if "attention" in wanted:
            reply["attention"], notes = await self.attention(image)
            reply["notes"] += notes
        if "tokens" in wanted:
            reply["tokens"] = await self.tokens(image)
            if not reply["tokens"]:
                reply["notes"].append("Token pictures exist for models of t2t only.")
        if "occlusion" in wanted:
            reply["occlusion"] = await self.occlusion(image, explained)
        reply["milliseconds"] = milliseconds(time.perf_counter() - started)
        return reply

    async def attention(self, image: Images) -> tuple[Json | None, list[str]]:
        """Attention of every layer, and rollout up to it, for every head."""
        model = self.predictor.model
        async with self._one_set_of_maps:
            layers, notes = await self.on_model(
                lambda: attention_maps_with_notes(model, image)
            )
            if not layers:
                return None, notes
            found = await self.service.in_pool(
                lambda: attention_json(
                    layers, num_tokens_read(model), has_rollout(layers, model)
                )
            )
        return found, notes

    async def tokens(self, image: Images) -> list[Json]:
        """The token grids of our transformers as pictures, one pixel per token."""
        model = self.predictor.model
        if not isinstance(model, VisionTransformer):
            return []
        maps = await self.on_model(lambda: token_maps(model, image))

        def draw() -> list[Json]:
            return [
                {"name": name, **picture_json(colours_of(tokens), sharp=True)}
                for name, tokens in maps
            ]

        return await self.service.in_pool(draw)

    async def occlusion(self, image: Images, explained: ClassProbability) -> Json:
        """Percentage points that hiding each cell costs the class."""
        occlusion = Occlusion(image)
        lost: list[float] = []
        for start in range(0, len(occlusion.squares), OCCLUSION_BATCH):
            hidden = occlusion.hidden(start, start + OCCLUSION_BATCH)
            found = await self.on_model(partial(self.probabilities, hidden))
            of_class = found[:, explained.index]
            lost += (100 * (explained.probability - of_class)).tolist()
        cells = occlusion.map(lost)
        return {**grid_json(cells), "points": numbers(cells, 2)}

    def probabilities(self, images: Images) -> Tensor:
        """The probabilities of all classes for normalised images."""
        logits = self.predictor.model(images).float()
        return self.predictor.probabilities_of(logits).cpu()

    async def on_model(self, function: Callable[[], Value]) -> Value:
        """The value of a function that the model's thread calls."""

        def call() -> Value:
            with torch.inference_mode():
                return function()

        return await asyncio.wrap_future(self.service.thread.call(call))

    def pictures(self, data: bytes, pixels: Pixels) -> Json:
        """What the model is given, and the same part of the upload as it is."""
        view = self.view(data)
        return {
            "input": picture_json(pixels, sharp=True),
            "view": picture_json(view, sharp=view.shape == pixels.shape),
        }

    def view(self, data: bytes) -> Pixels:
        """The part of the upload that the model sees, as sharp as it is."""
        crop = self.predictor.crop
        sharpness = min(image_size(data)) * crop.fraction / max(crop.size)
        factor = max(min(math.ceil(sharpness), VIEW_SIDE // max(crop.size)), 1)
        height, width = (factor * side for side in crop.size)
        return self.service.cropped(
            data, CenterCrop(size=(height, width), fraction=crop.fraction)
        )


def attention_json(
    layers: list[AttentionLayer], num_read: int, with_rollout: bool
) -> Json:
    """Maps of every block: first of all heads together, then of each."""
    blocks = []
    for layer in layers:
        heads = [None, *range(len(layer.weights))] if len(layer.weights) > 1 else [None]
        maps = [
            attention_from_output(layer, num_read=num_read, head=head) for head in heads
        ]
        rows, columns = layer.grid
        blocks.append(
            {
                "name": layer.name,
                "rows": rows,
                "columns": columns,
                "num_heads": len(layer.weights),
                "attention": [numbers(each, 3) for each in maps],
                "rollout": None,
            }
        )
    if with_rollout:
        found = rollouts(layers, num_read=num_read)
        for block, choices in zip(blocks, found, strict=True):
            block["rollout"] = [numbers(each, 3) for each in choices]
    return {"layers": blocks}


def colours_of(tokens: FeatureMap) -> Pixels:
    """A token map in colours."""
    colours = pca_colours(tokens)
    return (255 * colours).round().to(torch.uint8).permute(2, 0, 1)[None]


def grid_json(grid: Float[Tensor, "rows columns"]) -> Json:
    """The size of a map."""
    return {"rows": grid.shape[0], "columns": grid.shape[1]}


def numbers(grid: Tensor, decimals: int) -> list[float]:
    """The values of a map row by row."""
    return [round(value, decimals) for value in grid.flatten().tolist()]


def picture_json(pixels: Pixels, *, sharp: bool) -> Json:
    """An image as a data: URL; as PNG if every pixel counts, else as JPEG."""
    planes = np.moveaxis(pixels[0].cpu().numpy(), 0, -1)
    image = Image.fromarray(planes[..., 0] if planes.shape[-1] == 1 else planes)
    file = io.BytesIO()
    kind = "png" if sharp else "jpeg"
    if sharp:
        image.save(file, "PNG")
    else:
        image.convert("L" if image.mode == "L" else "RGB").save(
            file, "JPEG", quality=88
        )
    encoded = base64.b64encode(file.getvalue()).decode()
    return {
        "width": image.width,
        "height": image.height,
        "picture": f"data:image/{kind};base64,{encoded}",
    }
