"""Splits a source into parts, and orders its images, by a seed."""

import numpy as np
import numpy.typing as npt

from t2t.data.sources.base import Indices, Source, Splits, Subset, no_labels
from t2t.data.sources.label_sets import rarest_classes
from t2t.errors import UserError


def holdout(source: Source, num: int, seed: int = 0) -> tuple[Source, Source]:
    """Splits off `num` images, stratified by class; returns the rest and these.

    At least one image of every class stays in the rest.
    """
    strata = strata_of(source)
    most = len(source) - len(np.unique(strata))
    if not 0 < num <= most:
        left = "one of each class" if source.is_labelled else "one"
        raise UserError(
            f"Cannot hold {num} of {len(source)} images out, with {left} left to train "
            f"on: give a number from 1 to {most}."
        )
    return _split(source, held_out_indices(strata, num, seed, left=1))


def strata_of(source: Source) -> Indices:
    """The stratum of each image: its class, of several the rarest."""
    if source.label_sets is None:
        return source.labels
    return rarest_classes(source.labels, source.label_sets, len(source.classes))


def fold_of(splits: Splits, number: int, num_folds: int, seed: int = 0) -> Splits:
    """One of `num_folds` divisions of the images, stratified by class.

    The folds' validation sets are disjoint and together all images: of data without a
    validation set all that it has, otherwise its training images. `number` starts at 1.
    """
    source = splits.train
    if isinstance(source, Subset) and isinstance(splits.val, Subset):
        # Split by a seed: both are parts of one source.
        source = source.source if source.source is splits.val.source else source
    strata = strata_of(source)
    counts = np.bincount(strata, minlength=len(source.classes))
    if len(source) < num_folds:
        raise UserError(
            f"{len(source)} images cannot be divided into {num_folds} folds; give "
            f"--folds {len(source)} or less, or more images."
        )
    if (counts == 1).any() and source.is_labelled and not source.is_multilabel:
        single = source.classes[int(np.flatnonzero(counts == 1)[0])]
        raise UserError(
            f"Class {single!r} has a single image, and cross-validation needs one to "
            "train on and one to evaluate on: add images, or remove the class."
        )
    order = permutation(len(source), seed)
    # Sorted by class, images are dealt to the folds in turn.
    order = order[np.argsort(strata[order], kind="stable")]
    held = np.sort(order[number - 1 :: num_folds])
    kept, held_out = _split(source, held)
    description = f"{splits.description}; fold {number} of {num_folds}"
    return Splits(kept, held_out, description)


def _split(source: Source, held: Indices) -> tuple[Source, Source]:
    kept = np.setdiff1d(np.arange(len(source)), held)
    return Subset(source, kept), Subset(source, held)


def split_by_seed(
    source: Source, fraction: float, seed: int, where: str, *, labels: bool = True
) -> tuple[Source, Source]:
    """A training and a validation part, both with images of every class.

    Without `labels`, a class with a single image is allowed: the split then ignores
    the classes. So it is with several labels per image: it is a training image.
    """
    if not 0 < fraction < 1:
        raise UserError(
            f"A validation fraction of {fraction} leaves nothing to train on or to "
            "evaluate on: give a number between 0 and 1, such as 0.1."
        )
    strata = strata_of(source)
    counts = np.bincount(strata, minlength=len(source.classes))
    if (counts == 1).any() and not source.is_multilabel:
        if labels:
            single = source.classes[int(np.flatnonzero(counts == 1)[0])]
            raise UserError(
                f"Class {single!r} of {where} has a single image, and a split needs "
                "one to train on and one to evaluate on: add images, remove the class, "
                "or give train and val folders."
            )
        if len(source) == 1:
            raise UserError(
                f"{where} has a single image, and a split needs one to train on and "
                "one to evaluate on: add images."
            )
        strata = no_labels(len(source))
    num = round(len(source) * fraction)
    held = held_out_indices(strata, num, seed, minimum=1, left=1)
    if not len(held):
        raise UserError(
            f"{where} has {len(source)} images, each the only one of its rarest class, "
            "and a split needs some to train on and some to evaluate on: add images, "
            "or say which they are (train and val folders, or a column split)."
        )
    return _split(source, held)


def held_out_indices(
    labels: Indices, num: int, seed: int, minimum: int = 0, left: int = 0
) -> Indices:
    """`num` sorted indices, stratified by class.

    At least `minimum` images of each class are taken, if `left` of them are not.
    """
    counts = np.bincount(labels)
    quotas = _share_out(counts, num, minimum, left)
    # Random order, then stably sorted by class: the first of each class are taken.
    order = permutation(len(labels), seed)
    order = order[np.argsort(labels[order], kind="stable")]
    starts = np.cumsum(counts) - counts
    rank = np.arange(len(labels)) - starts[labels[order]]
    chosen: Indices = np.sort(order[rank < quotas[labels[order]]])
    return chosen


def _share_out(counts: Indices, num: int, minimum: int, left: int) -> Indices:
    """Integers that add up to `num`, in proportion to the counts."""
    exact = counts * (num / counts.sum())
    low = np.minimum(minimum, np.maximum(counts - left, 0))
    high = np.maximum(counts - left, low)
    quotas: Indices = np.clip(np.floor(exact).astype(np.int64), low, high)
    while (missing := num - int(quotas.sum())) != 0:
        step = 1 if missing > 0 else -1
        free = np.flatnonzero(quotas < high if step > 0 else quotas > low)
        if not len(free):
            break
        neediest = free[np.argsort(step * (quotas - exact)[free], kind="stable")]
        quotas[neediest[: abs(missing)]] += step
    return quotas


def permutation(num: int, seed: int) -> Indices:
    """A random order of 0 … num - 1 that depends on no library's generator."""
    return np.argsort(_scrambled(np.arange(num), seed), kind="stable").astype(np.int64)


def _scrambled(numbers: Indices, seed: int) -> npt.NDArray[np.uint64]:
    """64 well-mixed bits for each number: the finaliser of splitmix64."""
    with np.errstate(over="ignore"):
        start = np.uint64(seed % 2**64) * np.uint64(0xD1342543DE82EF95)
        bits = start + (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(
            0x9E3779B97F4A7C15
        )
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: npt.NDArray[np.uint64] = bits ^ (bits >> np.uint64(31))
    return mixed


def mixed_order(source: Source, seed: int) -> Indices:
    """All images in random order.

    Of a source that reads blocks, as many random blocks as it keeps in memory are
    shuffled together, so that no block is read twice.
    """
    order = permutation(len(source), seed)
    if source.blocks is None:
        return order
    positions = _block_positions(source.blocks, seed)
    window = positions // max(source.num_blocks_at_once, 1)
    return order[np.argsort(window[order], kind="stable")]


def dealt_order(source: Source, batch_size: int, seed: int) -> Indices:
    """All images in random order, of which whole batches are made.

    The blocks of a source are dealt to lanes. Every batch has a part from each lane,
    in the order of the lanes, and each lane shuffles a few of its blocks at a time.
    So a process that takes some lanes of every batch reads its own blocks only, and
    the batches do not depend on the number of processes.
    """
    order = permutation(len(source), seed)
    blocks = source.blocks
    if blocks is None:
        return order
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    positions = _block_positions(blocks, seed)
    num_steps = len(order) // batch_size
    # Half: while a lane moves on, it reads blocks of two windows.
    at_once = max(source.num_blocks_at_once // 2, 1)
    num_lanes = number_of_lanes(at_once, int(positions.max()) + 1, batch_size)
    parts = np.diff(np.arange(num_lanes + 1) * batch_size // num_lanes)
    by_block = order[np.argsort(positions[order], kind="stable")]
    *lanes, rest = np.split(by_block, np.cumsum(parts * num_steps))
    batches = []
    for lane in lanes:
        _, numbered = np.unique(positions[lane], return_inverse=True)
        window = numbered // (at_once // num_lanes)
        mixed = lane[np.lexsort((rank[lane], window))]
        batches.append(mixed.reshape(num_steps, -1))
    return np.concatenate([np.concatenate(batches, axis=1).reshape(-1), rest])


def number_of_lanes(num_at_once: int, num_blocks: int, batch_size: int) -> int:
    """The largest power of two that blocks in memory, blocks and a batch allow."""
    return 1 << (min(num_at_once, num_blocks, batch_size).bit_length() - 1)


def _block_positions(blocks: Indices, seed: int) -> Indices:
    """For each image, the position of its block in a random order of the blocks."""
    _, numbered = np.unique(blocks, return_inverse=True)
    position = np.argsort(permutation(int(numbered.max()) + 1, seed + 1))
    return position[numbered].astype(np.int64)
