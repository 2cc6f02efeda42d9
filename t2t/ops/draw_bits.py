"""Random bits by hashing: a key, a stream's word and a counter, mixed as splitmix64."""

import torch
from jaxtyping import Int64
from torch import Tensor

Keys = tuple[Int64[Tensor, " batch"], Int64[Tensor, ""]]

_TWO_64 = 1 << 64


def signed(word: int) -> int:
    """The 64-bit word as the signed integer that an int64 tensor can hold."""
    word %= _TWO_64
    return word - _TWO_64 if word >= _TWO_64 >> 1 else word


# The increment and the multipliers of the splitmix64 generator.
INCREMENT = signed(0x9E3779B97F4A7C15)
MULTIPLIERS = (signed(0xBF58476D1CE4E5B9), signed(0x94D049BB133111EB))


def shift_right(word: Tensor, places: int) -> Tensor:
    """A logical shift: int64's own is arithmetic and would copy the sign."""
    return (word >> places) & ((1 << (64 - places)) - 1)


def _finalise(word: Tensor) -> Tensor:
    """The splitmix64 finaliser: every input bit flips each output bit half the time."""
    word = (word ^ shift_right(word, 30)) * MULTIPLIERS[0]
    word = (word ^ shift_right(word, 27)) * MULTIPLIERS[1]
    return word ^ shift_right(word, 31)


def absorb(state: Tensor, word: Tensor | int) -> Tensor:
    """The next state after a word: a bijection of the word for a given state.

    Joined by xor, since compilers would fold a counter's sums and products into
    indices that overflow.
    """
    return _finalise((state ^ word) * INCREMENT)


def draw_keys_reference(
    seed: int, step: Int64[Tensor, ""], indices: Int64[Tensor, " batch"]
) -> Keys:
    """A key per index, hashed from seed, step and index; and the key of the step."""
    start = torch.full((), INCREMENT, dtype=torch.int64, device=indices.device)
    step_key = absorb(absorb(start, seed), step)
    return absorb(step_key, indices), step_key


def draw_bits_reference(
    keys: Int64[Tensor, " batch"], word: int, num: int
) -> Int64[Tensor, "batch num"]:
    """The hash of each key with the word, then with 0 … num − 1."""
    return absorb(absorb(keys, word)[:, None], torch.arange(num, device=keys.device))


# Operators that torch.compile does not trace into: it would recompute a sample's draws
# for every pixel, and compile for long, since each state is used twice.
@torch.library.custom_op("t2t::draw_keys", mutates_args=())
def draw_keys_operator(
    seed: int, step: Tensor, indices: Tensor
) -> tuple[Tensor, Tensor]:
    """`draw_keys_reference` as an operator."""
    return draw_keys_reference(seed, step, indices)


@torch.library.custom_op("t2t::draw_bits", mutates_args=())
def draw_bits_operator(keys: Tensor, word: int, num: int) -> Tensor:
    """`draw_bits_reference` as an operator."""
    return draw_bits_reference(keys, word, num)


@draw_keys_operator.register_fake
def _(seed: int, step: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(indices), indices.new_empty(())


@draw_bits_operator.register_fake
def _(keys: Tensor, word: int, num: int) -> Tensor:
    return keys.new_empty((len(keys), num))


def draw_keys(
    seed: int, step: Int64[Tensor, ""], indices: Int64[Tensor, " batch"]
) -> Keys:
    """`draw_keys_reference`, which torch.compile calls as an operator."""
    if torch.compiler.is_compiling():
        keys: Keys = draw_keys_operator(seed, step, indices)
        return keys
    return draw_keys_reference(seed, step, indices)


def draw_bits(
    keys: Int64[Tensor, " batch"], word: int, num: int
) -> Int64[Tensor, "batch num"]:
    """`draw_bits_reference`, which torch.compile calls as an operator."""
    if torch.compiler.is_compiling():
        bits: Tensor = draw_bits_operator(keys, word, num)
        return bits
    return draw_bits_reference(keys, word, num)
