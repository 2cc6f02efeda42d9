"""Heads of a file: kept where their classes are the wanted ones, else left out."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from t2t.models.class_names import class_indices, imagenet_classes, listed
from t2t.models.reading.published import State

HEADS = ("head", "distillation_head")


@dataclass(frozen=True)
class Classes:
    """Which classes a file's head tells apart, and which a model should."""

    known: Sequence[str] = ()
    """By the file; none where it does not name them."""
    wanted: Sequence[str] | None = None
    """By the data; None where only their number counts."""


@dataclass
class Heads:
    """What became of the heads, a sentence each."""

    kept: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)


def fit_heads(
    state: State, wanted: State, heads: tuple[str, ...], classes: Classes
) -> Heads:
    """Takes the model's own heads where the file's are for other classes."""
    told = Heads()
    has_any = any(part_of(wanted, head) for head in heads)
    for head in heads:
        given, own = part_of(state, head), part_of(wanted, head)
        called = "distillation head" if head == "distillation_head" else "head"
        if given and own and num_outputs(given) != num_outputs(own):
            told.changed.append(
                f"The {called} for {num_outputs(given)} classes was replaced by a "
                f"fresh one for {num_outputs(own)}."
            )
        elif given and own:
            order, reason = outputs_for(classes, num_outputs(given))
            if order is None:
                told.changed.append(
                    f"The {called} was replaced by a fresh one: {reason}."
                )
            elif order != [*range(len(order))]:
                state |= {name: tensor[order] for name, tensor in given.items()}
                told.changed.append(
                    f"The {called} was kept, its outputs in the order of the data's "
                    f"classes: {reason}."
                )
                continue
            else:
                told.kept.append(f"The {called} was kept: {reason}.")
                continue
        elif own and not given:
            told.changed.append(f"There is no {called} in it: the model's is fresh.")
        elif given and not has_any:
            told.changed.append(f"The {called} was left out.")
        else:
            continue
        for name in given:
            del state[name]
        state |= own
    return told


def part_of(tensors: State, head: str) -> State:
    """The tensors of one head."""
    return {
        name: tensor for name, tensor in tensors.items() if name.startswith(f"{head}.")
    }


def num_outputs(head: State) -> int:
    """How many classes a head tells apart."""
    return next(iter(head.values())).shape[0]


def outputs_for(classes: Classes, num: int) -> tuple[list[int] | None, str]:
    """Which output of the head is each wanted class, and why; None without agreement.

    As many classes are not the same classes: only names tell. 1,000 classes without
    names are taken for ImageNet's, as published files and shards leave them out.
    """
    known, wanted = classes.known, classes.wanted
    names = known if len(known) == num else ()
    if wanted is None:
        shown = f" ({listed(names)})" if names else ""
        return [*range(num)], f"its {num} classes{shown} are as many as the model's"
    imagenet = imagenet_classes()
    assumed = ""
    if not names and num == len(imagenet):
        names, assumed = imagenet, ", taken for ImageNet's since the file names none"
    if list(wanted) == [str(number) for number in range(len(imagenet))] and (
        tuple(names) == imagenet
    ):
        wanted, assumed = imagenet, ", taken for ImageNet's since the data is numbered"
    if not names:
        return None, (
            f"the file does not name its {num} classes, so they cannot be known to be "
            f"the data's ({listed(wanted)})"
        )
    order = [number for number in class_indices(wanted, names) if number is not None]
    if sorted(order) != [*range(num)]:
        return None, (
            f"its {num} classes ({listed(names)}{assumed}) are not the data's "
            f"{len(wanted)} ({listed(wanted)})"
        )
    return order, f"its {num} classes are the data's ({listed(wanted)}{assumed})"
