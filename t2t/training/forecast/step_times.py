"""The times of host, device and network in a step: measured, given or assumed."""

from dataclasses import dataclass
from typing import NamedTuple

from t2t.training.distributed import PARALLELISMS, Parallelism
from t2t.training.forecast.measured_steps import FLOOR_SECONDS, MeasuredSteps
from t2t.training.recipe import Recipe
from t2t.training.sharding import KEPT_BYTES

LARGE_BATCH = 256
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
STEP_SHARE = 0.44
"""Share of that rate in what a step takes beyond its `FLOOR_SECONDS`: T2T-ViT-14 at
batch 256 on one H200 with all augmentation (records/speed/h200.json)."""
OVERLAP = {"ddp": 2 / 3, "fsdp": 1.0, "hybrid": 1.0}
"""Share of the device's compute that communication can run beside: assumed."""
OVERLAP_KEPT = 1 / 8
"""The same for a small sharded model: the tokenizer's share."""
HOST_SECONDS = 0.002
"""To launch a step, which is one CUDA graph: assumed. T2T-ViT-14 took 0.7 to 1.9 ms by
itself, with DDP and with FSDP (records/speed/many-h200.json)."""


class Origin(NamedTuple):
    """Where a figure of a plan comes from."""

    is_measured: bool
    words: str


@dataclass(frozen=True)
class StepTimes:
    """The times of a step on one GPU: given, measured or assumed."""

    recipe: Recipe
    gpu: Gpu
    gmacs: float
    given_rate: float | None
    measured: MeasuredSteps | None

    def device_seconds(self, num_images: int, whole: bool = False) -> float:
        """The device's mean time for some images, or with all tokens."""
        if self.given_rate:  # which includes token dropping
            return num_images / self.given_rate
        cost = 1.0 if whole else self.recipe.cost()
        if self.measured is not None:
            known = self.measured.device_seconds(num_images)
            return known * (1.0 if self.measured.is_whole_run else cost)
        flops = FLOPS_PER_MAC * self.gmacs * 1e9
        rate = STEP_SHARE * self.gpu.matrix_tflops * 1e12 / flops
        return FLOOR_SECONDS + cost * num_images / rate

    def rate(self) -> float:
        """Images per second with all tokens, in large batches, as evaluations have."""
        return LARGE_BATCH / self.device_seconds(LARGE_BATCH, whole=True)

    def host_seconds(self, num_images: int) -> float:
        """The host's time to launch a step."""
        measured = self.measured
        known = None if measured is None else measured.host_seconds(num_images)
        return HOST_SECONDS if known is None else known

    def origins(self, num_images: int) -> dict[str, Origin]:
        """Where the times come from."""
        host = Origin(False, "a step launched as one CUDA graph")
        words = (
            f"{FLOOR_SECONDS * 1e3:g} ms and {STEP_SHARE:g} of the rate of matrix "
            "products, as T2T-ViT-14 has on one H200"
        )
        device = Origin(False, words)
        if self.measured is not None:
            known = Origin(True, self.measured.words(num_images))
            is_known = self.measured.host_seconds(num_images) is not None
            host = known if is_known else host
            device = known
        if self.given_rate:
            device = Origin(True, f"{self.given_rate:,.0f} images/s by --rate")
        return {"host": host, "device": device}


def overlap(parallelism: Parallelism, num_bytes: float) -> float:
    """The share of a step's compute beside which a model's weights can be sent."""
    if PARALLELISMS[parallelism] and num_bytes <= KEPT_BYTES:
        return OVERLAP_KEPT
    return OVERLAP[parallelism]


def network_origins(
    gpu: Gpu, num_gpus: int, per_node: int, parallelism: Parallelism, share: float
) -> dict[str, Origin]:
    """What is assumed of the network; nothing with one GPU."""
    if num_gpus == 1:
        return {}
    within = f"{gpu.link_gbs:g} GB/s within a node"
    between = f"{gpu.network_gbs:g} GB/s per GPU between nodes"
    used = [within] if num_gpus <= per_node else [between]
    if parallelism == "hybrid" and num_gpus > per_node:
        used = [within, between]
    beside = "all" if share == 1 else f"{share:.2g}"
    return {
        "network": Origin(False, " and ".join(used)),
        "overlap": Origin(False, f"beside {beside} of the device's time"),
    }
