"""Benchmark cases: a model, its size, and how its step runs."""

import functools
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import Literal

from torch import nn

from t2t.analysis.cost import count
from t2t.errors import UserError
from t2t.models.config import Size
from t2t.models.create import create_model
from t2t.models.vit import VisionTransformer
from t2t.models.without_weights import without_weights
from t2t.models.zoo import ZOO

Mode = Literal["train", "infer"]
Launch = Literal["graph", "eager_graph", "compiled", "eager"]
REPLAYED = ("graph", "eager_graph")
COMPILED = ("graph", "compiled")
# Operations of the matrix units; norms and scales run elsewhere.
PRODUCTS = ("linear", "convolution", "attention", "kernel features")


@dataclass(frozen=True, kw_only=True)
class Case:
    """All that a measurement depends on except the machine."""

    model: str
    mode: Mode = "train"
    image_size: int = 224
    batch: int = 256
    precision: str = "bf16"
    launch: Launch = "graph"
    depth: int | None = None
    """Number of blocks, if not the model's own."""

    def build(self) -> nn.Module:
        """The untrained model, with stochastic depth for training."""
        depth = {} if self.depth is None else {"depth": self.depth}
        create = functools.partial(
            create_model, self.model, image_size=self.image_size, **depth
        )
        if self.mode == "train":
            with suppress(UserError):  # some timm models have no drop path
                return create(drop_path=0.1)
        return create()


@functools.cache
def case_flops(case: Case) -> int:
    """FLOPs per image, counted without computing."""
    with without_weights():
        model = case.build()
    return model_flops(model, (case.image_size, case.image_size), case.mode)


def model_flops(model: nn.Module, image_size: Size, mode: Mode) -> int:
    """FLOPs of the matrix products for one image."""
    items = count(model, image_size).items
    # Backward takes two products for each one of forward.
    passes = 3 if mode == "train" else 1
    return 2 * passes * sum(items[item] for item in PRODUCTS)


def all_cases(
    models: Sequence[str],
    modes: Sequence[Mode],
    image_sizes: Sequence[int],
    batches: Sequence[int],
    precisions: Sequence[str],
    launch: Launch,
) -> list[Case]:
    """Every combination; without image sizes, each model's own size."""
    return [
        Case(
            model=model,
            mode=mode,
            image_size=image_size or default_side(model),
            batch=batch,
            precision=precision,
            launch=launch,
        )
        for mode, image_size, batch, precision, model in product(
            modes, image_sizes or (0,), batches, precisions, models
        )
    ]


def default_side(model: str) -> int:
    """The image side of a model; 224 for all timm models."""
    return ZOO[model].image_size[0] if model in ZOO else 224


def default_depth(model: str) -> int:
    """The number of blocks of a model whose depth can be changed."""
    with without_weights():
        built = create_model(model)
    if not isinstance(built, VisionTransformer) or built.config.wiring != "residual":
        raise UserError(
            f"The depth of {model} cannot be changed; leave depth out of --grow, or "
            "name a T2T-ViT or ViT from `t2t models`."
        )
    return built.config.depth
