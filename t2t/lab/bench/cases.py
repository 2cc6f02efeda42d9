"""What is measured: a model, a way of running it, a size."""

import functools
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import Literal

import torch
from torch import nn

from t2t.analysis.cost import count
from t2t.errors import UserError
from t2t.models.config import Size
from t2t.models.create import create_model
from t2t.models.vit import VisionTransformer
from t2t.models.zoo import ZOO

Mode = Literal["train", "infer"]
Launch = Literal["graph", "eager_graph", "compiled", "eager"]
# Those that replay a CUDA graph, and those that compile first.
REPLAYED = ("graph", "eager_graph")
COMPILED = ("graph", "compiled")
# Multiplications that a matrix unit does; norms and scales are done elsewhere.
PRODUCTS = ("linear", "convolution", "attention", "kernel features")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row to be: everything that its number depends on but the machine."""

    model: str
    mode: Mode = "train"
    image_size: int = 224
    batch: int = 256
    precision: str = "bf16"
    launch: Launch = "graph"
    depth: int | None = None
    """Another number of blocks than the named model has."""

    def build(self) -> nn.Module:
        """The model, untrained, with the stochastic depth that training has."""
        depth = {} if self.depth is None else {"depth": self.depth}
        create = functools.partial(
            create_model, self.model, image_size=self.image_size, **depth
        )
        if self.mode == "train":
            with suppress(UserError):  # some of timm's have no branches to drop
                return create(drop_path=0.1)
        return create()


@functools.cache
def operations_of(case: Case) -> int:
    """Multiplications and additions of one image, counted on shapes alone."""
    with torch.device("meta"):
        model = case.build()
    return operations(model, (case.image_size, case.image_size), case.mode)


def operations(model: nn.Module, image_size: Size, mode: Mode) -> int:
    """Multiplications and additions that matrix units do for one image."""
    items = count(model, image_size).items
    # Backward takes two products for each of forward: one for either factor.
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
    """Every combination, the models side by side within each.

    Without image sizes, each model gets images of its own size.
    """
    return [
        Case(
            model=model,
            mode=mode,
            image_size=image_size or own_side(model),
            batch=batch,
            precision=precision,
            launch=launch,
        )
        for mode, image_size, batch, precision, model in product(
            modes, image_sizes or (0,), batches, precisions, models
        )
    ]


def own_side(model: str) -> int:
    """Pixels of the images that a model is for; timm's are all compared at 224."""
    return ZOO[model].image_size[0] if model in ZOO else 224


def own_depth(model: str) -> int:
    """How many blocks a model of ours has, which can then be given another number."""
    with torch.device("meta"):
        built = create_model(model)
    if not isinstance(built, VisionTransformer) or built.config.wiring != "residual":
        raise UserError(
            f"The depth of {model} cannot be changed by a number; leave depth out of "
            "--grow, or name a T2T-ViT or ViT of `t2t models`."
        )
    return built.config.depth
