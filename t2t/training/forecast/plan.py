"""What a run would take on machines one does not have: docs/scaling.md, as code."""

from dataclasses import dataclass
from typing import Any

from t2t.data.sampler import steps_per_epoch
from t2t.errors import UserError, choose
from t2t.models.zoo import ZOO
from t2t.training.distributed import PARALLELISMS, Parallelism, check_nodes
from t2t.training.logging.clock import duration
from t2t.training.recipe import Recipe

BYTES = 4
"""Weights, gradients and optimizer state are float32 whatever the products are in."""
OPTIMIZER_WORDS = {"adamw": 2, "sgd": 1, "muon": 1}
"""Numbers that an optimizer keeps for each parameter; two for those of other names."""
IMAGENET = 1_281_167
FLOPS_PER_MAC = 6
"""A multiplication and an addition, forward once and backward twice."""


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU, and how it is wired to others."""

    memory_gib: float
    matrix_tflops: float
    """What large bf16 matrix products reach, in 10¹² operations a second."""
    link_gbs: float
    """To its neighbours in a machine, GB/s each way."""
    network_gbs: float
    """Its share of the network between machines, GB/s each way."""


# H200's memory was measured. Rates of products, of NVLink and of one network card a GPU
# are assumed: 80 % of the makers' figures.
GPUS = {
    "H200": Gpu(139.0, 790.0, 360.0, 40.0),
    "H100": Gpu(79.0, 790.0, 360.0, 40.0),
    "A100": Gpu(79.0, 250.0, 240.0, 20.0),
}
# What a whole step reaches of that rate: T2T-ViT-14 at batch 256 on one H200 with all
# its augmentation, as records/speed/tried-h200.json has it. What of the sending hides
# behind computing, and what a step costs however few images it has, are assumed.
STEP_SHARE = 0.39
HIDDEN_SHARE = {"ddp": 2 / 3, "fsdp": 1.0, "hybrid": 1.0}
STEP_SECONDS = 0.004


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A prediction for one recipe on so many GPUs."""

    recipe: str
    num_gpus: int
    gpu: str
    parallelism: Parallelism
    steps: int
    images_per_gpu: int
    """Of each step."""
    compute_seconds: float
    """Of each step in the mean: some may be on fewer tokens than others."""
    network_seconds: float
    """Of each step, were it not hidden behind computing."""
    step_seconds: float
    sent_bytes: float
    """That a GPU sends in a step."""
    state_gib: float
    """Weights, gradients, optimizer and average on a GPU."""
    activations_gib: float | None
    """What the backward pass needs of the images computed at once; None if unknown."""
    memory_gib: float
    """What a GPU has."""
    evaluation_hours: float
    hours: float

    @property
    def images_per_second(self) -> float:
        """Of all GPUs together: what the storage has to deliver."""
        return self.num_gpus * self.images_per_gpu / self.step_seconds

    @property
    def efficiency(self) -> float:
        """The share of time in which GPUs compute."""
        return self.compute_seconds / self.step_seconds

    @property
    def fits(self) -> bool | None:
        """Whether it fits into memory; None where the activations are not known."""
        if self.activations_gib is None:
            return None
        return self.state_gib + self.activations_gib < self.memory_gib

    def rows(self) -> list[tuple[str, str]]:
        """All of it for people: what it is, and how much."""
        memory = f"{self.state_gib:.2f} GiB for weights, gradients, optimizer, average"
        if self.activations_gib is not None:
            memory += f"; {self.activations_gib:.1f} GiB for activations"
        if self.state_gib >= self.memory_gib:
            memory += "; too much, so share it out (--parallelism) over more GPUs"
        elif self.fits is False:
            memory += "; too much, so lower --micro-batch"
        return [
            (
                "time",
                f"{self.hours:.3g} h, {duration(3600 * self.evaluation_hours)} of it "
                "scoring",
            ),
            ("steps", f"{self.steps:,} of {self.step_seconds * 1e3:.1f} ms"),
            ("a step computes", f"{self.compute_seconds * 1e3:.1f} ms"),
            (
                "a step sends",
                f"{self.sent_bytes / 2**20:,.0f} MiB a GPU, "
                f"{self.network_seconds * 1e3:.1f} ms, in part while it computes",
            ),
            ("images a second", f"{self.images_per_second:,.0f} to be read"),
            ("memory a GPU", f"{memory}; there are {self.memory_gib:.0f}"),
        ]

    def as_json(self) -> dict[str, Any]:
        """All of it, for programs."""
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

    Counts of parameters and MACs are the zoo's where it has the recipe's model.
    `activation_bytes` are of one image; `images_per_second` is a measured training rate
    of one GPU, which replaces what is assumed of it.
    """
    wired = choose("gpu", gpu, GPUS)
    choose("parallelism", parallelism, PARALLELISMS)
    parameters, gmacs = counts(recipe, parameters, gmacs)
    if num_gpus < 1 or recipe.batch_size % num_gpus:
        raise UserError(
            f"A batch of {recipe.batch_size} cannot be shared by {num_gpus} GPUs; set "
            "batch_size to a multiple, and the learning rate follows."
        )
    if parallelism == "hybrid":
        check_nodes(num_gpus, min(per_node, num_gpus))
    share = recipe.batch_size // num_gpus
    flops = FLOPS_PER_MAC * gmacs * 1e9
    rate = images_per_second or STEP_SHARE * wired.matrix_tflops * 1e12 / flops
    # A rate that was measured is of the run as it is, with the tokens that it drops.
    compute = share / rate * (1 if images_per_second else mean_cost(recipe))
    near, far = sent_bytes(parameters, num_gpus, min(per_node, num_gpus), parallelism)
    network = near / (wired.link_gbs * 1e9) + far / (wired.network_gbs * 1e9)
    exposed = max(0.0, network - HIDDEN_SHARE[parallelism] * compute)
    step = compute + exposed + STEP_SECONDS
    steps = steps_per_epoch(num_images, recipe.batch_size) * recipe.epochs
    evaluation = num_scored(recipe, num_validation) / (3 * rate * num_gpus) / 3600
    words = num_words(recipe) / num_shards(num_gpus, per_node, parallelism)
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
        state_gib=words * BYTES * parameters / 2**30,
        activations_gib=None if activations is None else activations / 2**30,
        memory_gib=wired.memory_gib,
        evaluation_hours=evaluation,
        hours=steps * step / 3600 + evaluation,
    )


def counts(
    recipe: Recipe, parameters: int | None, gmacs: float | None
) -> tuple[int, float]:
    """Parameters and billions of MACs of a recipe's model."""
    entry = ZOO.get(recipe.model)
    as_listed = (
        entry is not None
        and not recipe.model_args
        and recipe.image_size == entry.image_size
        and recipe.channels == 3
    )
    if as_listed and entry is not None:
        return parameters or entry.parameters, gmacs or entry.gmacs
    if parameters is None or gmacs is None:
        raise UserError(
            f"The costs of {recipe.name}'s model at {recipe.image_size} are not in the "
            "list of models; give its parameters and gmacs, as `t2t show` counts them."
        )
    return parameters, gmacs


def mean_cost(recipe: Recipe) -> float:
    """About what a step takes in the mean, beside one on all tokens."""
    return sum(share * phase.cost for phase, share in recipe.phases().items())


def num_scored(recipe: Recipe, num_validation: int) -> int:
    """Images that all evaluations score, by raw and by averaged weights.

    Each costs a third of one that is trained on: there is no backward pass.
    """
    num_times = -(-recipe.epochs // recipe.evaluate_every)
    return num_times * num_validation * (2 if recipe.ema.decay else 1)


def num_words(recipe: Recipe) -> int:
    """Numbers kept for a parameter: weight, gradient, optimizer's, average."""
    kept = 2 + OPTIMIZER_WORDS.get(recipe.optimizer.name, 2)
    return kept + 1 if recipe.ema.decay else kept


def num_shards(num_gpus: int, per_node: int, parallelism: Parallelism) -> int:
    """Over how many GPUs the weights are shared out."""
    return {"ddp": 1, "fsdp": num_gpus, "hybrid": min(per_node, num_gpus)}[parallelism]


def sent_bytes(
    parameters: int, num_gpus: int, per_node: int, parallelism: Parallelism
) -> tuple[float, float]:
    """What a GPU sends in a step, in rings: in its machine, and between machines."""
    size = BYTES * parameters
    over_all = 1 - 1 / num_gpus
    if parallelism == "hybrid":
        near = 3 * (1 - 1 / per_node) * size
        num_machines = num_gpus / per_node
        return near, 2 * (1 - 1 / num_machines) * size / per_node
    total = {"ddp": 2, "fsdp": 3}[parallelism] * over_all * size
    return (total, 0.0) if num_gpus <= per_node else (0.0, total)
