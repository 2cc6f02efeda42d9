"""Random numbers that are functions of (seed, step, sample index, stream) alone.

A counter-based generator has no state: each number is a hash of these four. A sample
gets the same draws on any device, in any batch, in any process and after any resume.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from t2t.errors import UserError
from t2t.ops.draw_bits import draw_bits, draw_keys, shift_right, signed


def stream_word(stream: str) -> int:
    """A 64-bit FNV-1a hash of the name, in plain Python, which compilers fold."""
    word = 0xCBF29CE484222325
    for character in stream:
        word = ((word ^ ord(character)) * 0x100000001B3) % (1 << 64)
    return signed(word)


@dataclass(frozen=True, eq=False)
class CounterRng:
    """The generator of one batch: a key per sample, hashed with a stream's name.

    `CounterRng.of` makes it from a seed, a step and indices. Streams with different
    names are independent; the same stream gives the same numbers again.
    """

    keys: Int64[Tensor, " batch"]
    step_key: Int64[Tensor, ""]

    @classmethod
    def of(
        cls, seed: int, step: int | Int64[Tensor, ""], indices: Int64[Tensor, " batch"]
    ) -> "CounterRng":
        """The generator of these samples at this step (or epoch), on their device.

        An image that occurs twice in a step needs two indices. Inside a compiled
        region, give the step as a tensor: an integer would be a constant.
        """
        if indices.ndim != 1 or indices.dtype != torch.int64:
            raise UserError(
                "CounterRng.of needs a vector of int64 sample indices, not "
                f"{indices.dtype} of shape {tuple(indices.shape)}."
            )
        if isinstance(step, int):
            step = torch.full((), step, dtype=torch.int64, device=indices.device)
        keys, step_key = draw_keys(signed(seed), step, indices)
        return cls(keys=keys, step_key=step_key)

    def shared(self) -> "CounterRng":
        """The generator of the step alone, a batch of one: equal for all samples."""
        return CounterRng(keys=self.step_key[None], step_key=self.step_key)

    def for_view(self, view: int) -> "CounterRng":
        """The generator of another view of the same samples; of view 0, this one."""
        if view == 0:
            return self
        word = stream_word(f"view.{view}")
        keys, step_key = (
            draw_bits(each, word, 1)[:, 0] for each in (self.keys, self.step_key[None])
        )
        return CounterRng(keys=keys, step_key=step_key[0])

    def every(self, group: int) -> "CounterRng":
        """One sample for each group of neighbours: the first."""
        return CounterRng(keys=self.keys[::group], step_key=self.step_key)

    def bits(self, stream: str, num: int = 1) -> Int64[Tensor, "batch num"]:
        """All 64 random bits, as signed integers."""
        return draw_bits(self.keys, stream_word(stream), num)

    def uniform(
        self, stream: str, num: int = 1, low: float = 0.0, high: float = 1.0
    ) -> Float[Tensor, "batch num"]:
        """Floats in [low, high); by default multiples of 2⁻²⁴, equal on any device."""
        unit = shift_right(self.bits(stream, num), 40).float() * 2.0**-24
        if (low, high) == (0.0, 1.0):
            return unit
        return low + (high - low) * unit

    def bernoulli(self, stream: str, probability: float) -> Bool[Tensor, "batch 1"]:
        """True with this probability: 0 is never, 1 is always."""
        return self.uniform(stream) < probability

    def integers(
        self, stream: str, high: int, num: int = 1
    ) -> Int64[Tensor, "batch num"]:
        """Integers from 0 to `high` − 1; `high` is below 2³¹."""
        return (shift_right(self.bits(stream, num), 32) * high) >> 32

    def normal(self, stream: str, num: int) -> Float[Tensor, "batch num"]:
        """Standard normals by Box and Muller's formula, within ±5.9.

        Equal on any device to the rounding of its logarithm and cosine.
        """
        bits = self.bits(stream, num)
        radius = (shift_right(bits, 40).float() + 0.5) * 2.0**-24
        angle = ((bits >> 8) & 0xFFFFFF).float() * (2.0**-24 * 2.0 * math.pi)
        return (-2.0 * radius.log()).sqrt() * angle.cos()

    def permutation(self, stream: str, num: int) -> Int64[Tensor, "batch num"]:
        """A random order of 0 … num − 1 for each sample; meant for a few elements."""
        key = self.bits(stream, num)
        # The rank of each element among all, by comparing every pair: no sorting.
        return (key[:, None, :] < key[:, :, None]).sum(2)

    def beta(
        self, stream: str, alpha: float | Float[Tensor, "#batch 1"]
    ) -> Float[Tensor, "batch 1"]:
        """A draw of Beta(alpha, alpha), as a ratio of gamma draws."""
        first, second = self._log_gamma_draws(stream, alpha).split(1, 1)
        return torch.sigmoid(first - second)

    def _log_gamma_draws(
        self, stream: str, alpha: float | Float[Tensor, "#batch 1"]
    ) -> Float[Tensor, "batch 2"]:
        """The logarithms of two gamma draws, without a common term.

        Marsaglia and Tsang's rejection: the first accepted of eight tries, each of
        which is accepted 95 % of the time or more.
        """
        # The method draws for alpha + 1; a power of a uniform brings that to alpha.
        offset = alpha + 2.0 / 3.0
        normal = self.normal(f"{stream}.normal", 16)
        cube = (1.0 + normal / (9.0 * offset) ** 0.5) ** 3
        log_cube = cube.clamp(min=1e-12).log()
        uniform = (self.uniform(f"{stream}.uniform", 18) + 2.0**-25).log()
        bound = 0.5 * normal**2 + offset * (1.0 - cube + log_cube)
        accepted = (cube > 0) & (uniform[:, :16] < bound)
        first = accepted.unflatten(1, (2, 8)).int().argmax(2, keepdim=True)
        # log(offset) is left out: it is common to both and cancels in their share.
        drawn = log_cube.unflatten(1, (2, 8)).gather(2, first)[:, :, 0]
        return drawn + uniform[:, 16:] / alpha
