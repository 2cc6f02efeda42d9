"""The hash behind every random draw, as in `t2t.ops.draw_bits`."""

# mypy: ignore-errors
# Triton's functions are a language of their own, without Python's types.

import triton
import triton.language as tl

# The increment and the multipliers of the splitmix64 generator.
INCREMENT = tl.constexpr(0x9E3779B97F4A7C15)
FIRST = tl.constexpr(0xBF58476D1CE4E5B9)
SECOND = tl.constexpr(0x94D049BB133111EB)


@triton.jit
def absorb(state, word):
    """The next state after a word, both of 64 bits."""
    mixed = (state ^ word).to(tl.uint64, bitcast=True) * INCREMENT
    mixed = (mixed ^ (mixed >> 30)) * FIRST
    mixed = (mixed ^ (mixed >> 27)) * SECOND
    return (mixed ^ (mixed >> 31)).to(tl.int64, bitcast=True)


# Not specialised by seed or stream, to compile once.
@triton.jit(do_not_specialize=["seed", "size"])
def draw_keys(
    step_ptr, index_ptr, key_ptr, step_key_ptr, seed, size, BLOCK: tl.constexpr
):
    """The keys of some samples; the first program also writes the step's."""
    start = tl.full((), INCREMENT, tl.uint64).to(tl.int64, bitcast=True)
    step_key = absorb(absorb(start, seed.to(tl.int64)), tl.load(step_ptr))
    if tl.program_id(0) == 0:
        tl.store(step_key_ptr, step_key)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    index = tl.load(index_ptr + at, mask=at < size, other=0)
    tl.store(key_ptr + at, absorb(step_key, index), mask=at < size)


@triton.jit(do_not_specialize=["word", "num", "size"])
def draw_bits(key_ptr, out_ptr, word, num, size, BLOCK: tl.constexpr):
    """Bits at positions i: draw i % num of sample i // num."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = at < size
    key = tl.load(key_ptr + at // num, mask=real, other=0)
    bits = absorb(absorb(key, word), at % num)
    tl.store(out_ptr + at, bits, mask=real)
