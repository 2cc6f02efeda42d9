"""Predicts time and memory of a run on many GPUs: docs/scaling.md as code."""

from dataclasses import dataclass, replace
from typing import Any

from t2t.data.sampler import steps_per_epoch
from t2t.errors import UserError, choose
from t2t.formatting import duration
from t2t.models.zoo import ZOO
from t2t.training.distributed import PARALLELISMS, Parallelism
from t2t.training.forecast.measured_steps import MeasuredSteps
from t2t.training.forecast.step_times import (
    GPUS,
    Origin,
    StepTimes,
    network_origins,
    overlap,
)
from t2t.training.recipe import Recipe
from t2t.training.sharding import KEPT_BYTES, check_nodes

BYTES = 4
"""Per value: weights, gradients and optimizer state are always float32."""
OPTIMIZER_VALUES = {"adamw": 2, "sgd": 1, "muon": 1}
"""Values that an optimizer keeps per parameter; two for other names."""
IMAGENET = 1_281_167
JPEG_BYTES = 115_000
"""An image of ImageNet's archive, on average."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A prediction for one recipe on a number of GPUs."""

    recipe: str
    num_gpus: int
    gpu: str
    parallelism: Parallelism
    steps: int
    images_per_gpu: int
    num_nodes: int
    host_seconds: float
    """Time to launch a step."""
    device_seconds: float
    """Mean time per step without the network: some steps may use fewer tokens."""
    network_seconds: float
    """Time per step without overlap."""
    exposed_seconds: float
    """The part of the network's time in which the device does not compute."""
    origins: dict[str, Origin]
    """Where host, device, network and overlap come from."""
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
    def step_seconds(self) -> float:
        """The host prepares the next step while the device computes."""
        return max(self.host_seconds, self.device_seconds + self.exposed_seconds)

    @property
    def limit(self) -> str:
        """The bottleneck of a step: host, network or device."""
        if self.host_seconds > self.device_seconds + self.exposed_seconds:
            return "host"
        return "network" if self.exposed_seconds > self.device_seconds else "device"

    @property
    def images_per_second(self) -> float:
        """Rate of all GPUs together, which the storage has to deliver."""
        return self.num_gpus * self.images_per_gpu / self.step_seconds

    @property
    def efficiency(self) -> float:
        """The share of time in which GPUs compute."""
        return self.device_seconds / self.step_seconds

    @property
    def fits(self) -> bool | None:
        """Whether it fits into memory; None if the activations are unknown."""
        if self.activations_gib is None:
            return None
        return self.state_gib + self.activations_gib < self.memory_gib

    @property
    def basis(self) -> str:
        """What the hours are computed from, in words."""
        known = {each.is_measured for each in self.origins.values()}
        if known == {True}:
            return "computed from measured figures"
        figures = "measured and assumed" if True in known else "assumed"
        return f"computed from {figures} figures"

    def rows(self) -> list[tuple[str, str]]:
        """Labels and values of a table."""
        memory = f"{self.state_gib:.2f} GiB for weights, gradients, optimizer, EMA"
        if self.activations_gib is not None:
            memory += f"; {self.activations_gib:.1f} GiB for activations"
        if self.state_gib >= self.memory_gib:
            memory += "; too much: shard it over more GPUs (--parallelism)"
        elif self.fits is False:
            memory += "; too much: lower --micro-batch"
        per_node = self.images_per_second / self.num_nodes
        return [
            (
                "time",
                f"{self.hours:.3g} h, {duration(3600 * self.evaluation_hours)} of it "
                f"evaluation ({self.basis})",
            ),
            (
                "steps",
                f"{self.steps:,} of {self.step_seconds * 1e3:.1f} ms each, limited by "
                f"the {self.limit}",
            ),
            self.figure("host"),
            self.figure("device"),
            *self.network(),
            ("GPUs compute", f"{self.efficiency:.0%} of the time of training steps"),
            (
                "data loading",
                f"must deliver {self.images_per_second:,.0f} images/s: per node "
                f"{per_node:,.0f}, or {per_node * JPEG_BYTES / 1e9:.1f} GB/s of "
                "ImageNet's JPEGs",
            ),
            ("memory per GPU", f"{memory}; the GPU has {self.memory_gib:.0f} GiB"),
        ]

    def network(self) -> list[tuple[str, str]]:
        """The row of the network's time per step, if there is more than one GPU."""
        if self.num_gpus == 1:
            return []
        sent = f"{self.sent_bytes / 2**20:,.0f} MiB sent per GPU"
        total, exposed = 1e3 * self.network_seconds, 1e3 * self.exposed_seconds
        waits = f"GPUs wait {exposed:.1f} ms of it" if exposed else "beside compute"
        return [("network per step", f"{total:.1f} ms (assumed): {sent}, {waits}")]

    def figure(self, name: str) -> tuple[str, str]:
        """The row of the host's or the device's time per step."""
        seconds = {"host": self.host_seconds, "device": self.device_seconds}[name]
        origin = self.origins[name]
        known = "measured" if origin.is_measured else "assumed"
        if "extrapolated" in origin.words:
            known = "extrapolated from measurements"
        return f"{name} per step", f"{seconds * 1e3:.1f} ms ({known})"

    def sources(self) -> list[str]:
        """Sentences on what was measured, and what is assumed."""
        lines = []
        for is_measured, label in ((True, "Measured"), (False, "Assumed")):
            words = [
                f"{name} ({origin.words})"
                for name, origin in self.origins.items()
                if origin.is_measured == is_measured
            ]
            lines += [f"{label}: {'; '.join(words)}."] if words else []
        return lines

    def as_json(self) -> dict[str, Any]:
        """The prediction as JSON."""
        derived = ("step_seconds", "limit", "images_per_second", "efficiency", "fits")
        origins = {name: origin._asdict() for name, origin in self.origins.items()}
        values = {name: getattr(self, name) for name in derived}
        return {**vars(self), **values, "origins": origins}


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
    measured: MeasuredSteps | None = None,
) -> Plan:
    """Predicts a run's hours, memory and network.

    Counts of parameters and MACs are those of the zoo if it has the recipe's model.
    `activation_bytes` is per image; `images_per_second` is a measured training rate
    of one GPU, `measured` its times by batch: both replace what is assumed.
    """
    kind = choose("gpu", gpu, GPUS)
    choose("parallelism", parallelism, PARALLELISMS)
    parameters, gmacs = model_cost(recipe, parameters, gmacs)
    if num_gpus < 1 or recipe.batch_size % num_gpus:
        nearest = -(-recipe.batch_size // max(num_gpus, 1)) * num_gpus
        raise UserError(
            f"A batch of {recipe.batch_size} cannot be divided over {num_gpus} GPUs; "
            f"add --set batch_size={nearest} or another multiple, and the learning "
            "rate scales with it."
        )
    if parallelism == "hybrid":
        check_nodes(num_gpus, min(per_node, num_gpus))
    share, local = recipe.batch_size // num_gpus, min(per_node, num_gpus)
    step = StepTimes(recipe, kind, gmacs, images_per_second, measured)
    device, host = step.device_seconds(share), step.host_seconds(share)
    near, far = sent_bytes(parameters, num_gpus, local, parallelism)
    network = near / (kind.link_gbs * 1e9) + far / (kind.network_gbs * 1e9)
    beside = overlap(parallelism, BYTES * parameters)
    exposed = max(0.0, network - beside * device)
    steps = steps_per_epoch(num_images, recipe.batch_size) * recipe.epochs
    evaluation = num_evaluated(recipe, num_validation) / (3 * step.rate() * num_gpus)
    values = values_per_parameter(recipe) / num_shards(num_gpus, per_node, parallelism)
    at_once = min(micro_batch or share, share)
    activations = None if activation_bytes is None else activation_bytes * at_once
    found = Plan(
        recipe=recipe.name,
        num_gpus=num_gpus,
        gpu=gpu,
        parallelism=parallelism,
        steps=steps,
        images_per_gpu=share,
        num_nodes=-(-num_gpus // per_node),
        host_seconds=host,
        device_seconds=device,
        network_seconds=network,
        exposed_seconds=exposed,
        origins={
            **step.origins(share),
            **network_origins(kind, num_gpus, per_node, parallelism, beside),
        },
        sent_bytes=near + far,
        state_gib=values * BYTES * parameters / 2**30,
        activations_gib=None if activations is None else activations / 2**30,
        memory_gib=kind.memory_gib,
        evaluation_hours=evaluation / 3600,
        hours=0.0,
    )
    hours = steps * found.step_seconds / 3600 + found.evaluation_hours
    return replace(found, hours=hours)


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
    # Gathered once or twice, and gradients summed up.
    times = 2 if size <= KEPT_BYTES else 3
    if parallelism == "hybrid":
        near = times * (1 - 1 / per_node) * size
        num_nodes = num_gpus / per_node
        return near, 2 * (1 - 1 / num_nodes) * size / per_node
    total = {"ddp": 2, "fsdp": times}[parallelism] * over_all * size
    return (total, 0.0) if num_gpus <= per_node else (0.0, total)
