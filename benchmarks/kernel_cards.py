"""Compiles every Triton kernel for GPUs that are not here and shows what it needs.

    python benchmarks/kernel_cards.py                       # the table of docs/speed.md
    python benchmarks/kernel_cards.py --write docs/speed.md

Kernels are compiled with the arguments that the package launches them with: each case
calls the package's own function on a CPU, and the launches are recorded.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from tables import fill
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from t2t.ops import (
    attention,
    augment_triton,
    embedding,
    first_attention,
    gelu,
    image_windows,
    performer_step,
    ranks,
    residual_norm,
    token_transformer_triton,
)
from t2t.ops.availability import MATMUL_SHARED_MEMORY
from t2t.ops.crop_resize import crop_resize_triton
from t2t.ops.ragged import Ragged

KIB = 1 << 10
compile_kernel = JITFunction.run


class Card(NamedTuple):
    """A compute capability, its shared memory per program and a GPU that has it."""

    capability: int
    shared_memory: int
    example: str

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """The half precisions that the GPU computes in."""
        if self.capability < 80:
            return (torch.float16,)
        return (torch.bfloat16, torch.float16)

    def __str__(self) -> str:
        return f"{self.capability // 10}.{self.capability % 10}"


CARDS = (
    Card(75, 64 * KIB, "T4, RTX 20"),
    Card(80, 163 * KIB, "A100"),
    Card(86, 99 * KIB, "RTX 30"),
    Card(89, 99 * KIB, "RTX 40, L4"),
    Card(90, 227 * KIB, "H100, H200"),
    Card(100, 227 * KIB, "B200"),
    Card(120, 99 * KIB, "RTX 50"),
)


class Launch(NamedTuple):
    """A kernel and the arguments it was launched with."""

    kernel: JITFunction
    arguments: tuple[Any, ...]
    options: dict[str, Any]


class Case(NamedTuple):
    """A call that launches kernels."""

    operation: str
    shape: str
    run: Callable[[torch.dtype], object]
    has_matmuls: bool = False
    """Whether its kernels multiply matrices, and so need `runs_matmul_kernels`."""
    is_half: bool = True
    """Whether its kernels depend on the dtype."""

    def __str__(self) -> str:
        return f"{self.operation}, {self.shape}"

    def runs_on(self, card: Card) -> bool:
        """Whether the package launches these kernels there, or takes the plain path."""
        return not self.has_matmuls or card.shared_memory >= MATMUL_SHARED_MEMORY


def attention_case(tokens: int, head: int) -> Case:
    """Both ways, four heads."""

    def run(dtype: torch.dtype) -> None:
        qkv = torch.empty(2, tokens, 3 * 4 * head, dtype=dtype)
        out, log_sum = attention.packed_forward(qkv, 4, 0.125)
        attention.packed_backward(qkv, out, log_sum, out, 4, 0.125)

    return Case("attention", f"{tokens} tokens, heads of {head}", run, True)


def first_attention_case(num_read: int, head: int) -> Case:
    """Both ways, four heads."""

    def run(dtype: torch.dtype) -> None:
        query = torch.empty(2, num_read, 4 * head, dtype=dtype)
        kv = torch.empty(2, 197, 8 * head, dtype=dtype)
        out, log_sum = first_attention.forward_of(query, kv, 4, 0.125)
        first_attention.backward_of(query, kv, out, log_sum, out, 0.125)

    shape = f"{num_read} tokens, heads of {head}"
    return Case("attention of the first tokens", shape, run)


def embedding_case(dim: int, stream: torch.dtype | None, drops: bool) -> Case:
    """Both ways, with all that is added."""

    def run(dtype: torch.dtype) -> None:
        features, vector = torch.empty(4, 196, dim, dtype=dtype), torch.empty(dim)
        rank = torch.zeros(4, 196, dtype=torch.int64) if drops else None
        added = (vector, vector.expand(1, 1, dim), vector.expand(197, dim))
        kind = stream or dtype
        out = embedding.fused_forward(
            features, *added, rank, 98 if drops else 196, kind
        )
        embedding.fused_backward(out, rank, 196, 1, True, dtype)

    shape = f"{dim} channels"
    shape += " in float32" if stream else ""
    return Case("embedding", shape + (", half of the tokens" if drops else ""), run)


def image_windows_case(size: int, split: tuple[int, int, int], channels: int) -> Case:
    """Squares or windows, and statistics, of both kinds of images."""
    is_small = channels * split[0] ** 2 <= image_windows.MAX_VALUES
    forward = image_windows.gather_forward if is_small else image_windows.fused_forward

    def run(dtype: torch.dtype) -> None:
        for kind in (torch.float32, dtype):
            image = torch.empty(2, channels, size, size, dtype=kind)
            forward(image, *split, 1e-5, dtype)

    shape = f"{size} px × {channels}, windows {split}"
    return Case("image windows", shape, run)


def ranks_case(columns: int) -> Case:
    """Ranks within rows."""

    def run(dtype: torch.dtype) -> None:
        ranks.fused_forward(torch.empty(3, columns))

    return Case("ranks", f"{columns} values", run, is_half=False)


def residual_norm_case(dim: int, stream: torch.dtype | None, drops: bool) -> Case:
    """Sum and norm, both ways, then the norm alone."""

    def run(dtype: torch.dtype) -> None:
        tokens = torch.empty(4, 197, dim, dtype=stream or dtype)
        branch = torch.empty(4, 197, dim, dtype=dtype)
        vector = torch.empty(dim)
        rows = torch.zeros(4, dtype=torch.int32) if drops else None
        scale = 1.1 if drops else 1.0
        given = (rows, rows, 4, scale, 1e-5)
        residual_norm.fused_forward(tokens, branch, vector, vector, vector, *given)
        residual_norm.fused_backward(tokens, tokens, branch, vector, *given)
        residual_norm.norm_forward(tokens, vector, vector, rows, 4, 1e-5, dtype)
        residual_norm.norm_backward(tokens, branch, vector, rows, 1e-5)

    shape = f"{dim} channels"
    shape += " in float32" if stream else ""
    return Case("residual norm", shape + (", drop path" if drops else ""), run)


def gelu_case(hidden: int) -> Case:
    """Both ways."""

    def run(dtype: torch.dtype) -> None:
        inner = torch.empty(4, 197, hidden, dtype=dtype)
        gelu.fused_forward(inner, torch.empty(hidden))
        gelu.fused_backward(inner, inner)

    return Case("GELU", f"{hidden} channels", run)


def token_transformer_case(features: int, drop_rate: float, need_rstd: bool) -> Case:
    """Both ways."""

    def run(dtype: torch.dtype) -> None:
        tokens = (2, 3136)
        inputs = (
            torch.zeros(*tokens, 192, dtype=dtype),
            *(torch.zeros(tokens), torch.zeros(tokens)),
            *(torch.zeros(192), torch.zeros(192), torch.zeros(features, 64)),
            *(torch.zeros(64, 64) for _ in range(3)),
            *(torch.zeros(3, 64), torch.tensor(0)),
        )
        forward = token_transformer_triton.fused_forward
        out, moments, *kept = forward(*inputs, drop_rate, 1e-5)
        token_transformer_triton.fused_backward(
            *inputs, out, *kept, out, moments, drop_rate, 1e-5, need_rstd
        )

    shape = f"{features} features" + (", dropout" if drop_rate else "")
    shape += "" if need_rstd else ", first step"
    return Case("token transformer", shape, run, True)


def augment_case(size: int, channels: int) -> Case:
    """Crop and flip, operations, mixing with normalising and erasing."""

    def run(dtype: torch.dtype) -> None:
        images = torch.zeros(4, channels, size, size, dtype=torch.uint8)
        number, share = torch.zeros(4, dtype=torch.int64), torch.zeros(4)
        box, level = torch.zeros(4, 4, dtype=torch.int64), torch.zeros(channels)
        for reflects in (False, True):
            augment_triton.crop_and_flip(images, number, number, number > 0, reflects)
        fill_level = level.to(torch.uint8)
        matrix = torch.zeros(4, 6)
        codes = number.int()
        augment_triton.apply_operations(images, codes, share, matrix, fill_level)
        for mixes, keys in ((True, number), (False, None)):
            mixed = (share, box) if mixes else (None, None)
            augment_triton.mix_normalise_erase(
                images, *mixed, 4, level, level, box if mixes else None, keys, 5
            )

    return Case("augmentation", f"{size} px × {channels}", run, is_half=False)


def crop_resize_case(size: int) -> Case:
    """Columns, then rows."""

    def run(dtype: torch.dtype) -> None:
        images = [torch.zeros(3, 375, 500, dtype=torch.uint8)]
        boxes, filters = torch.tensor([[0.0, 0.0, 500.0, 375.0]]), torch.tensor([1])
        crop_resize_triton(Ragged.from_images(images), boxes, (size, size), filters)

    return Case("crop and resize", f"{size} px", run, is_half=False)


def common_cases() -> list[Case]:
    """What T2T-ViT-14 on ImageNet and the CIFAR recipes launch."""
    return [
        *(attention_case(tokens, 64) for tokens in (128, 197, 256)),
        first_attention_case(1, 64),
        embedding_case(384, None, True),
        image_windows_case(224, (7, 4, 2), 3),
        image_windows_case(32, (3, 1, 1), 3),
        ranks_case(256),
        residual_norm_case(384, None, True),
        gelu_case(1152),
        token_transformer_case(32, 0.1, True),
        augment_case(224, 3),
        crop_resize_case(224),
    ]


def all_cases() -> list[Case]:
    """Every size that the package's kernels are launched with."""
    return [
        *(
            attention_case(tokens, head)
            for head in attention.HEAD_SIZES
            for tokens in (65, 128, 197, 256, attention.MAX_TOKENS)
        ),
        *(
            first_attention_case(num_read, head)
            for num_read in (1, first_attention.MAX_READ)
            for head in (16, 64, first_attention.MAX_HEAD)
        ),
        *(
            embedding_case(dim, stream, drops)
            for dim in (64, 384, 1024)
            for stream in (None, torch.float32)
            for drops in (False, True)
        ),
        *(
            image_windows_case(size, split, channels)
            for channels in (1, 3)
            for size, split in (
                (32, (3, 1, 1)),
                (64, (3, 2, 1)),
                (224, (7, 4, 2)),
                (384, (7, 4, 2)),
            )
        ),
        *(
            residual_norm_case(dim, stream, drops)
            for dim in (64, 384, 1024)
            for stream in (None, torch.float32)
            for drops in (False, True)
        ),
        *(ranks_case(columns) for columns in (2, 196, 1024)),
        *(gelu_case(hidden) for hidden in (64, 1152)),
        *(
            token_transformer_case(features, drop_rate, need_rstd)
            for features in (16, performer_step.MAX_FEATURES)
            for drop_rate, need_rstd in ((0.0, False), (0.1, True))
        ),
        *(augment_case(size, channels) for size in (32, 224) for channels in (1, 3)),
        *(crop_resize_case(size) for size in (32, 224, 384)),
    ]


def launches(case: Case, dtype: torch.dtype) -> list[Launch]:
    """What a case launches, without compiling or running it."""
    found: list[Launch] = []

    def record(
        kernel: JITFunction, *arguments: Any, grid: object, warmup: bool, **options: Any
    ) -> None:
        found.append(Launch(kernel, arguments, options))

    with (
        mock.patch.object(JITFunction, "run", record),
        mock.patch("t2t.ops.kernels.launch.launch", lambda kernel: kernel),
    ):
        case.run(dtype)
    return found


class AbsentGpu:
    """What Triton asks of a driver in order to compile."""

    def __init__(self, card: Card) -> None:
        self.card = card

    def get_current_device(self) -> int:
        """A number that no GPU here has: Triton caches compilers by it."""
        return 1000 + self.card.capability

    def get_current_stream(self, device: int) -> int:
        """Nothing is launched."""
        return 0

    def get_current_target(self) -> GPUTarget:
        """What to compile for."""
        return GPUTarget("cuda", self.card.capability, 32)


@contextmanager
def compiling_for(card: Card) -> Iterator[None]:
    """Lets Triton compile for a GPU that is not here."""
    before = driver._active
    driver.set_active(AbsentGpu(card))
    try:
        yield
    finally:
        driver.set_active(before)


def compiled(launch: Launch, card: Card) -> Any:
    """The compiled kernel of a launch."""
    with compiling_for(card):
        return compile_kernel(
            launch.kernel, *launch.arguments, grid=(1,), warmup=True, **launch.options
        )


def shared_memory(cases: Sequence[Case], card: Card) -> dict[str, int]:
    """The most shared memory that each kernel needs, in bytes; those that run there."""
    most: dict[str, int] = {}
    for case in cases:
        if not case.runs_on(card):
            continue
        for dtype in card.dtypes if case.is_half else card.dtypes[:1]:
            for launch in launches(case, dtype):
                name = f"{case.operation}: `{launch.kernel.fn.__name__}`"
                needed = compiled(launch, card).metadata.shared
                most[name] = max(most.get(name, 0), needed)
    return most


def table(cases: Sequence[Case], cards: Sequence[Card]) -> str:
    """Kernels by cards: KiB of shared memory, or the plain path."""
    columns = [shared_memory(cases, card) for card in cards]
    names = {name: None for column in reversed(columns) for name in column}
    lines = [
        "| kernel | " + " | ".join(f"{card} ({card.example})" for card in cards) + " |",
        "|---" * (len(cards) + 1) + "|",
        "| limit | "
        + " | ".join(str(card.shared_memory // KIB) for card in cards)
        + " |",
    ]
    for name in names:
        cells = [
            f"{column[name] / KIB:.0f}" if name in column else "plain path"
            for column in columns
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="the page whose table is replaced")
    options = parser.parse_args()
    text = table(all_cases(), CARDS)
    if options.write is None:
        print(text, end="")
    else:
        page = options.write.read_text()
        options.write.write_text(fill(page, "cards", text))


if __name__ == "__main__":
    main()
