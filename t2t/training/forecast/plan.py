"""Predicts time and memory of a run on many GPUs: docs/scaling.md as code."""

from dataclasses import dataclass
from typing import Any

from t2t.data.sampler import steps_per_epoch
from t2t.errors import UserError, choose
from t2t.models.zoo import ZOO
from t2t.training.distributed import PARALLELISMS, Parallelism, check_nodes
from t2t.training.logging.clock import duration
from t2t.training.recipe import Recipe

BYTES = 4
"""Per value: weights, gradients and optimizer state are always float32."""
OPTIMIZER_VALUES = {"adamw": 2, "sgd": 1, "muon": 1}
"""Values that an optimizer keeps per parameter; two for other names."""
IMAGENET = 1_281_167
FLOPS_PER_MAC = 6
"""A multiplication and an addition, forward once and backward twice."""


@dataclass(frozen=True)
class Gpu:
    """A GPU model, and its bandwidth to others."""

    memory_gib: float
    matrix_tflops: float
    """Rate of large bf16 matrix products, in 10¹² operations per second."""
    link_gbs: float
    """Bandwidth to other GPUs of the node, GB/s each way."""
    network_gbs: float
    """Its share of the network between nodes, GB/s each way."""


# H200's memory was measured. Rates of products, of NVLink and of one network card per
# GPU are assumed: 80 % of the vendor's figures.
GPUS = {
    "H200": Gpu(139.0, 790.0, 360.0, 40.0),
    "H100": Gpu(79.0, 790.0, 360.0, 40.0),
    "A100": Gpu(79.0, 250.0, 240.0, 20.0),
}
# Share of that rate in a whole step: T2T-ViT-14 at batch 256 on one H200 with all
# augmentation, from records/speed/tried-h200.json. Assumed are the share of
# communication that overlaps with compute, and the fixed time of a step.
STEP_SHARE = 0.39
OVERLAP = {"ddp": 2 / 3, "fsdp": 1.0, "hybrid": 1.0}
STEP_SECONDS = 0.004


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A prediction for one recipe on a number of GPUs."""

    recipe: str
    num_gpus: int
    gpu: str
    parallelism: Parallelism
    steps: int
    images_per_gpu: int
    """In each step."""
    compute_seconds: float
    """Mean time per step: some steps may use fewer tokens."""
    network_seconds: float
    """Time per step without overlap."""
    step_seconds: float
    sent_bytes: float
    """Per GPU and step."""
    state_gib: float
    """Weights, gradients, optimizer state and EMA on a GPU."""
    activations_gib: float | None
    """Activations of one micro-batch; None if unknown."""
    memory_gib: float
    """Memory of a GPU."""
    evaluation_hours: float
    hours: float

    @property
    def images_per_second(self) -> float:
        """Rate of all GPUs together, which the storage has to deliver."""
        return self.num_gpus * self.images_per_gpu / self.step_seconds

    @property
    def efficiency(self) -> float:
        """The share of time in which GPUs compute."""
        return self.compute_seconds / self.step_seconds

    @property
    def fits(self) -> bool | None:
        """Whether it fits into memory; None if the activations are unknown."""
        if self.activations_gib is None:
            return None
        return self.state_gib + self.activations_gib < self.memory_gib

    def rows(self) -> list[tuple[str, str]]:
        """Labels and values of a table."""
        memory = f"{self.state_gib:.2f} GiB for weights, gradients, optimizer, EMA"
        if self.activations_gib is not None:
            memory += f"; {self.activations_gib:.1f} GiB for activations"
        if self.state_gib >= self.memory_gib:
            memory += "; too much: shard it over more GPUs (--parallelism)"
        elif self.fits is False:
            memory += "; too much: lower --micro-batch"
        return [
            (
                "time",
                f"{self.hours:.3g} h, {duration(3600 * self.evaluation_hours)} of it "
                "evaluation",
            ),
            ("steps", f"{self.steps:,} of {self.step_seconds * 1e3:.1f} ms"),
            ("compute per step", f"{self.compute_seconds * 1e3:.1f} ms"),
            (
                "network per step",
                f"{self.sent_bytes / 2**20:,.0f} MiB per GPU, "
                f"{self.network_seconds * 1e3:.1f} ms, partly overlapped",
            ),
            ("data loading", f"{self.images_per_second:,.0f} images/s"),
            ("memory per GPU", f"{memory}; the GPU has {self.memory_gib:.0f} GiB"),
        ]

    def as_json(self) -> dict[str, Any]:
        """The prediction as JSON."""
        derived = ("images_per_second", "efficiency", "fits")
        return {**vars(self), **{name: getattr(self, name) for name in derived}}


def plan(
    recipe: Recipe,
    num_gpus: int,
    *,
    gpu: str = "H200",
    parallelism: Parallelism = "ddp",
    per_node: int = 8,
    num_images: int = IMAGENET,
    num_validation: int = 50_000,
    micro_batch: int | None = None,
    parameters: int | None = None,
    gmacs: float | None = None,
    activation_bytes: float | None = None,
    images_per_second: float | None = None,
) -> Plan:
    """Predicts a run's hours, memory and network.

    Counts of parameters and MACs are those of the zoo if it has the recipe's model.
    `activation_bytes` is per image; `images_per_second` is a measured training rate
    of one GPU, which replaces the assumed one.
    """
    kind = choose("gpu", gpu, GPUS)
    choose("parallelism", parallelism, PARALLELISMS)
    parameters, gmacs = model_cost(recipe, parameters, gmacs)
    if num_gpus < 1 or recipe.batch_size % num_gpus:
        raise UserError(
            f"A batch of {recipe.batch_size} cannot be divided over {num_gpus} GPUs; "
            "set batch_size to a multiple, and the learning rate scales with it."
        )
    if parallelism == "hybrid":
        check_nodes(num_gpus, min(per_node, num_gpus))
    share = recipe.batch_size // num_gpus
    flops = FLOPS_PER_MAC * gmacs * 1e9
    rate = images_per_second or STEP_SHARE * kind.matrix_tflops * 1e12 / flops
    # A measured rate includes token dropping.
    compute = share / rate * (1 if images_per_second else recipe.cost())
    near, far = sent_bytes(parameters, num_gpus, min(per_node, num_gpus), parallelism)
    network = near / (kind.link_gbs * 1e9) + far / (kind.network_gbs * 1e9)
    exposed = max(0.0, network - OVERLAP[parallelism] * compute)
    step = compute + exposed + STEP_SECONDS
    steps = steps_per_epoch(num_images, recipe.batch_size) * recipe.epochs
    evaluation = num_evaluated(recipe, num_validation) / (3 * rate * num_gpus) / 3600
    values = values_per_parameter(recipe) / num_shards(num_gpus, per_node, parallelism)
    at_once = min(micro_batch or share, share)
    activations = None if activation_bytes is None else activation_bytes * at_once
    return Plan(
        recipe=recipe.name,
        num_gpus=num_gpus,
        gpu=gpu,
        parallelism=parallelism,
        steps=steps,
        images_per_gpu=share,
        compute_seconds=compute,
        network_seconds=network,
        step_seconds=step,
        sent_bytes=near + far,
        state_gib=values * BYTES * parameters / 2**30,
        activations_gib=None if activations is None else activations / 2**30,
        memory_gib=kind.memory_gib,
        evaluation_hours=evaluation,
        hours=steps * step / 3600 + evaluation,
    )


def model_cost(
    recipe: Recipe, parameters: int | None, gmacs: float | None
) -> tuple[int, float]:
    """Parameters and billions of MACs of a recipe's model."""
    entry = ZOO.get(recipe.model)
    is_in_zoo = (
        entry is not None
        and not recipe.model_args
        and recipe.image_size == entry.image_size
        and recipe.channels == 3
    )
    if is_in_zoo and entry is not None:
        return parameters or entry.parameters, gmacs or entry.gmacs
    if parameters is None or gmacs is None:
        raise UserError(
            f"The cost of {recipe.name}'s model at {recipe.image_size} is unknown; "
            "give its parameters and gmacs, as `t2t show` counts them."
        )
    return parameters, gmacs


def num_evaluated(recipe: Recipe, num_validation: int) -> int:
    """Images of all evaluations, of the raw model and the EMA.

    Each costs a third of a training image, without a backward pass.
    """
    return recipe.num_evaluations * num_validation * (2 if recipe.ema.decay else 1)


def values_per_parameter(recipe: Recipe) -> int:
    """Values kept per parameter: weight, gradient, optimizer state, EMA."""
    values = 2 + OPTIMIZER_VALUES.get(recipe.optimizer.name, 2)
    return values + 1 if recipe.ema.decay else values


def num_shards(num_gpus: int, per_node: int, parallelism: Parallelism) -> int:
    """The number of GPUs that the weights are sharded over."""
    return {"ddp": 1, "fsdp": num_gpus, "hybrid": min(per_node, num_gpus)}[parallelism]


def sent_bytes(
    parameters: int, num_gpus: int, per_node: int, parallelism: Parallelism
) -> tuple[float, float]:
    """Bytes that a GPU sends per step, in rings: within its node, and between nodes."""
    size = BYTES * parameters
    over_all = 1 - 1 / num_gpus
    if parallelism == "hybrid":
        near = 3 * (1 - 1 / per_node) * size
        num_nodes = num_gpus / per_node
        return near, 2 * (1 - 1 / num_nodes) * size / per_node
    total = {"ddp": 2, "fsdp": 3}[parallelism] * over_all * size
    return (total, 0.0) if num_gpus <= per_node else (0.0, total)
