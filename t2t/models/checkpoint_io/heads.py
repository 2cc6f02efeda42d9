"""Keeps the heads of a file if they are for the same classes."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from t2t.models.checkpoint_io.published import StateDict
from t2t.models.class_names import class_indices, imagenet_classes, listed

HEADS = ("head", "distillation_head")


@dataclass(frozen=True)
class Classes:
    """The classes of a file's head, and those that a model needs."""

    known: Sequence[str] = ()
    """Class names in the file; empty if it has none."""
    wanted: Sequence[str] | None = None
    """Class names of the data; None if only the number of classes matters."""


@dataclass
class HeadReport:
    """Which heads were kept and which were changed, a sentence each."""

    kept: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    """The names of the heads that do not come from the file."""


def adapt_heads(
    state: StateDict, wanted: StateDict, heads: tuple[str, ...], classes: Classes
) -> HeadReport:
    """Replaces heads in `state` by the model's own if they are for other classes."""
    report = HeadReport()
    has_any = any(head_tensors(wanted, head) for head in heads)
    for head in heads:
        given, own = head_tensors(state, head), head_tensors(wanted, head)
        title = "distillation head" if head == "distillation_head" else "head"
        if given and own:
            num = num_outputs(given)
            order, reason = outputs_for(classes, num, num_outputs(own))
            if order is None:
                report.new.append(head)
                report.changed.append(
                    f"The {title} was replaced by a new one: {reason}."
                    if num == num_outputs(own)
                    else f"The {title} for {num} classes was replaced by a new one "
                    f"for {num_outputs(own)}."
                )
            elif order == [*range(num)]:
                report.kept.append(f"The {title} was kept: {reason}.")
                continue
            else:
                state |= {name: tensor[order] for name, tensor in given.items()}
                how = "reordered" if len(order) == num else "reduced"
                report.changed.append(
                    f"The {title} was kept, its outputs {how} to the data's "
                    f"classes: {reason}."
                )
                continue
        elif own and not given:
            report.new.append(head)
            report.changed.append(f"It has no {title}: the model's is new.")
        elif given and not has_any:
            report.changed.append(
                f"The {title} for {num_outputs(given)} classes was skipped."
            )
        else:
            continue
        for name in given:
            del state[name]
        state |= own
    return report


def head_tensors(tensors: StateDict, head: str) -> StateDict:
    """The tensors of one head."""
    return {
        name: tensor for name, tensor in tensors.items() if name.startswith(f"{head}.")
    }


def num_outputs(head: StateDict) -> int:
    """The number of classes of a head."""
    return next(iter(head.values())).shape[0]


def outputs_for(
    classes: Classes, num: int, num_wanted: int | None = None
) -> tuple[list[int] | None, str]:
    """The head's output for each wanted class, and why; None if it lacks a class.

    Classes are compared by name, not only by number. 1,000 classes without names are
    assumed to be ImageNet's, since published files and shards have no names.
    """
    known, wanted = classes.known, classes.wanted
    names = known if len(known) == num else ()
    if wanted is None and num_wanted not in (None, num):
        return None, f"it is for {num} classes"
    if wanted is None:
        shown = f" ({listed(names)})" if names else ""
        return [*range(num)], f"its {num} classes{shown} match the model's number"
    imagenet = imagenet_classes()
    assumed = ""
    if not names and num == len(imagenet):
        names, assumed = imagenet, ", assumed to be ImageNet's: the file has no names"
    if list(wanted) == [str(number) for number in range(len(imagenet))] and (
        tuple(names) == imagenet
    ):
        wanted, assumed = imagenet, ", assumed to be ImageNet's: the data has no names"
    if not names:
        return None, (
            f"the file does not name its {num} classes, so they may not be the data's "
            f"({listed(wanted)})"
        )
    order = [number for number in class_indices(wanted, names) if number is not None]
    if len(order) != len(wanted) or len({*order}) != len(order):
        return None, (
            f"its {num} classes ({listed(names)}{assumed}) are not the data's "
            f"{len(wanted)} ({listed(wanted)})"
        )
    are = "are" if len(order) == num else "include"
    return order, f"its {num} classes {are} the data's ({listed(wanted)}{assumed})"
