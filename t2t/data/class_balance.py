"""Uneven classes: how many images each has, and how balancing changes their shares."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from jaxtyping import Int64

from t2t.data.sampler import SourceShuffle, pass_seed, read_only
from t2t.data.sources.base import Indices, Source, Subset
from t2t.data.sources.splitting import dealt_order, permutation

UNEVEN_FROM = 2.0
"""Classes are uneven if the largest has this many times the images of the smallest."""
CLASS_SEED = 0xC2B2AE3D27D4EB4F
"""Added per class to a seed, so that classes of one size differ in their order."""


def class_counts(source: Source) -> Indices:
    """The number of images of every class; empty unless each image has one class."""
    if not source.is_labelled or source.is_multilabel:
        return np.zeros(0, np.int64)
    counts: Indices = np.bincount(source.labels, minlength=len(source.classes))
    return counts


def is_uneven(source: Source) -> bool:
    """Whether some class has far more images than another."""
    counts = class_counts(source)
    counts = counts[counts > 0]
    return len(counts) > 1 and counts.max() >= UNEVEN_FROM * counts.min()


def balance_factors(counts: Indices, power: float) -> npt.NDArray[np.float64]:
    """How much more than once an image of each class counts; the mean image counts 1.

    A class of n images has a factor in proportion to n to the minus `power`: 0 changes
    nothing, and with 1 all classes count the same. A class without images has 0.
    """
    present = counts > 0
    factors = np.zeros(len(counts))
    factors[present] = counts[present].astype(np.float64) ** -power
    factors *= counts.sum() / (counts * factors).sum()
    return factors


def balanced_quotas(counts: Indices, power: float) -> Indices:
    """Whole numbers of samples of each class, which add up to the number of images."""
    exact = counts * balance_factors(counts, power)
    quotas: Indices = np.floor(exact).astype(np.int64)
    missing = int(counts.sum() - quotas.sum())
    neediest = np.argsort(quotas - exact, kind="stable")[:missing]
    quotas[neediest] += 1
    return quotas


class BalancedShuffle(SourceShuffle):
    """Passes in which each class has its quota of samples, whatever its size.

    The images of a class take turns in random order, also from one pass to the next:
    since the start, none was shown more than once more often than another. A source
    that is read in blocks is still read from few at a time, as by `BlockShuffle`.
    """

    def __init__(self, source: Source, batch_size: int, power: float) -> None:
        super().__init__(source, batch_size)
        counts = class_counts(source)
        self._quotas = balanced_quotas(counts, power).tolist()
        by_class = np.argsort(source.labels, kind="stable")
        self._members = np.split(by_class, np.cumsum(counts)[:-1])

    def _shuffled(self, seed: int, number: int) -> Int64[np.ndarray, " images"]:
        samples = np.concatenate([*self._samples(seed, number)])
        shown = Subset(self._source, samples)
        order = dealt_order(shown, self._batch_size, pass_seed(seed, number))
        return read_only(samples[order])

    def _samples(self, seed: int, number: int) -> Iterator[Indices]:
        """The images of each class in pass `number`, some of them several times."""
        pairs = zip(self._members, self._quotas, strict=True)
        for label, (members, quota) in enumerate(pairs):
            if not quota:
                continue
            # Position in an endless row of permutations of the class.
            first, last = number * quota, (number + 1) * quota
            rounds = range(first // len(members), -(-last // len(members)))
            turns = [
                members[permutation(len(members), round_seed(seed, label, each))]
                for each in rounds
            ]
            start = first - rounds.start * len(members)
            yield np.concatenate(turns)[start : start + quota]


def round_seed(seed: int, label: int, number: int) -> int:
    """The seed of the permutation in which a class's images take their turns."""
    return pass_seed(seed, number) + (label + 1) * CLASS_SEED
