"""A model's summary: module tree, tokens, parameters and MACs."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from torch import nn

from t2t.analysis.cost import ITEMS, Cost, Part, count
from t2t.errors import UserError
from t2t.formatting import counted
from t2t.models.builtin import NAME as BUILTIN
from t2t.models.checkpoint_io.checkpoints import non_finite, read_checkpoint
from t2t.models.config import Size
from t2t.models.create import create_model
from t2t.models.vit import VisionTransformer
from t2t.models.weights import description_for, non_finite_note
from t2t.models.without_weights import without_weights
from t2t.models.zoo import ZOO, Entry, Paper

MIB = 2**20


@dataclass
class Branch:
    """A node of the module tree."""

    part: Part
    label: str
    inside: list["Branch"] = field(default_factory=list)

    @property
    def is_free(self) -> bool:
        """Whether it has no parameters, MACs or activations."""
        part = self.part
        return not (part.parameters or part.macs or part.activation_bytes)


@dataclass(frozen=True)
class ModelSummary:
    """What `t2t show` prints of a model."""

    name: str
    model: nn.Module
    cost: Cost
    entry: Entry | None
    model_args: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    """Warnings about a trained model's weights."""

    def render(self, depth: int | None = None) -> RenderableType:
        """The summary as text, with the module tree down to a depth."""
        ours = isinstance(self.model, VisionTransformer)
        if depth is None:
            depth = 3 if ours else 2
        gap = Text()
        parts = part_table(self.name, self.cost, depth)
        items = item_table(self.cost)
        notes = [Text(note, style="yellow") for note in self.notes]
        return Group(self.heading(), *notes, gap, self.facts(), gap, parts, gap, items)

    def heading(self) -> Text:
        """The name and a short description."""
        about = self.entry.about if self.entry else "built by timm"
        return Text.assemble((self.name, "bold cyan"), f"  {about}")

    def facts(self) -> Table:
        """The numbers of the whole model, a line each."""
        cost, model = self.cost, self.model
        height, width = cost.image_size
        lines = Table.grid(padding=(0, 2))
        lines.add_column(style="dim")
        lines.add_column()
        channels = counted(cost.in_channels, "channel")
        lines.add_row("image", f"{height}×{width}, {channels}")
        if isinstance(model, VisionTransformer):
            lines.add_row("tokens", token_line(model, cost.image_size))
        shown = ("image_size", "in_channels")
        changes = [f"{k}={v}" for k, v in self.model_args.items() if k not in shown]
        if changes:
            lines.add_row("model_args", ", ".join(changes))
        lines.add_row("parameters", parameter_line(cost))
        lines.add_row("MACs", f"{cost.macs / 1e9:.3f} G")
        lines.add_row("activations", activation_line(cost))
        if self.entry and self.entry.paper:
            unchanged = " (as published)" if self.model_args else ""
            lines.add_row("paper", paper_line(self.entry.paper) + unchanged)
        return lines

    def as_json(self) -> dict[str, Any]:
        """The summary as JSON, with every module."""
        cost, model, entry = self.cost, self.model, self.entry
        facts: dict[str, Any] = {
            "name": self.name,
            "about": entry.about if entry else None,
            "model_args": dict(self.model_args),
            "image_size": cost.image_size,
            "in_channels": cost.in_channels,
        }
        if isinstance(model, VisionTransformer):
            facts["token_grids"] = model.tokenizer.grids(cost.image_size)
            facts["prefix_tokens"] = model.config.num_prefix_tokens
        return facts | {
            "parameters": cost.parameters,
            "frozen_parameters": cost.frozen_parameters,
            "macs": cost.macs,
            "macs_by_item": cost.items,
            "activation_bytes": {
                "float32": cost.activation_bytes,
                "bfloat16": cost.activation_bytes_bf16,
            },
            "paper": vars(entry.paper) if entry and entry.paper else None,
            "notes": list(self.notes),
            "parts": [vars(part) for part in cost.parts],
        }


def summarise(name: str, model_args: Mapping[str, Any]) -> ModelSummary:
    """The summary of a model by its name, or of a trained model by its path.

    The model is built on the meta device, so nothing is computed.
    """
    is_file = Path(name).is_file() or any(Path(name).glob("*.safetensors"))
    notes: tuple[str, ...] = ()
    if name == BUILTIN or "/" in name or is_file:
        name, own, notes = read_trained(name)
        model_args = {**own, **model_args}
    with without_weights():
        model = create_model(name, **model_args)
    cost = count(model, model_args.get("image_size"), model_args.get("in_channels"))
    return ModelSummary(name, model, cost, ZOO.get(name), model_args, notes)


def read_trained(path: str) -> tuple[str, dict[str, Any], tuple[str, ...]]:
    """The name of a trained model, its arguments, and warnings about its weights."""
    checkpoint = read_checkpoint(path)
    known, note = description_for(checkpoint, None)
    warnings = (note, non_finite_note(non_finite(checkpoint.tensors)))
    notes = tuple(each for each in warnings if each)
    if known.config is None:
        made = {k: v for k, v in known.settings.items() if k != "name"}
        if "image_size" in known.extra:
            made["image_size"] = tuple(known.extra["image_size"])
        return known.name, made, notes
    entry = ZOO.get(known.name)
    if entry is None or entry.config is None:
        raise UserError(f"{path} does not name its model; show the model by its name.")
    plain = asdict(entry.config)
    own = asdict(known.config).items()
    return known.name, {k: value for k, value in own if value != plain[k]}, notes


def token_line(model: VisionTransformer, image_size: Size) -> str:
    """The token grids from the image to the backbone."""
    grids = model.tokenizer.grids(image_size)
    path = " → ".join(f"{rows}×{columns}" for rows, columns in [image_size, *grids])
    extra = {0: "", 1: " + class token", 2: " + class and distillation tokens"}
    num_tokens = math.prod(grids[-1])
    plural = "" if num_tokens == 1 else "s"
    prefix = extra[model.config.num_prefix_tokens]
    stages = dict.fromkeys(model.encoder.grids(grids[-1])[1:])
    stages.pop(grids[-1], None)
    later = ", ".join(f"{rows}×{columns}" for rows, columns in stages)
    later = f"; then {later}" if later else ""
    return f"{path} = {num_tokens} token{plural}{prefix}{later}"


def parameter_line(cost: Cost) -> str:
    """The numbers of trained and frozen parameters."""
    frozen = cost.frozen_parameters
    return f"{cost.parameters:,}" + (f" trained, {frozen:,} frozen" if frozen else "")


def activation_line(cost: Cost) -> str:
    """The activation memory of a training image."""
    return (
        f"{cost.activation_bytes / MIB:.1f} MiB per training image in float32, "
        f"{cost.activation_bytes_bf16 / MIB:.1f} in bfloat16"
    )


def paper_line(paper: Paper) -> str:
    """The published numbers."""
    figures = [f"{paper.params} M parameters"]
    if paper.macs is not None:
        figures.append(f"{paper.macs} G MACs")
    if paper.top1 is not None:
        figures.append(f"{paper.top1} % ImageNet top-1")
    return ", ".join(figures)


def part_table(name: str, cost: Cost, depth: int) -> Table:
    """The module tree with costs; repeated modules are summed."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("part", no_wrap=True)
    # The only column that a narrow terminal may cut.
    table.add_column("", style="dim", overflow="ellipsis")
    for heading in ("parameters", "MACs\nM", "activations\nMiB"):
        table.add_column(heading, justify="right", no_wrap=True)
    tree = merged(part_tree(cost.parts))
    tree.label = name
    for lead, branch in walk(tree, depth):
        part = branch.part
        table.add_row(
            Text.assemble((lead, "dim"), branch.label),
            part.kind,
            f"{part.parameters:,}" if part.parameters else "–",
            f"{part.macs / 1e6:,.1f}" if part.macs else "–",
            f"{part.activation_bytes / MIB:,.2f}" if part.activation_bytes else "–",
            style="bold" if branch is tree else "",
        )
    return table


def item_table(cost: Cost) -> RenderableType:
    """MACs by kind, and what is not counted."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("operation", no_wrap=True)
    table.add_column("MACs\nM", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("what is counted", style="dim")
    for item, macs in cost.items.items():
        if macs:
            share = f"{100 * macs / cost.macs:.1f} %"
            table.add_row(item, f"{macs / 1e6:,.1f}", share, ITEMS[item])
    note = "Not counted: additions and biases, softmax, GELU, BatchNorm, pooling."
    return Group(table, Text(), Text(note, style="dim"))


def part_tree(parts: Sequence[Part]) -> Branch:
    """The module tree; skips ModuleLists and modules without cost."""
    branches = {part.name: Branch(part, part.name) for part in parts}
    lists = {part.name for part in parts if part.kind == "ModuleList"}
    for part in parts[1:]:
        holder = part.name.rpartition(".")[0]
        while holder in lists:
            holder = holder.rpartition(".")[0]
        branch = branches[part.name]
        if part.name not in lists and not branch.is_free:
            branch.label = part.name[len(holder) + 1 if holder else 0 :]
            branches[holder].inside.append(branch)
    return branches[""]


def merged(branch: Branch) -> Branch:
    """The tree with equal siblings merged."""
    runs = [list(run) for _, run in groupby(branch.inside, key=merge_key)]
    return replace(branch, inside=[merged(add_up(run)) for run in runs])


def merge_key(branch: Branch) -> tuple[object, ...]:
    """A key that equal siblings of a ModuleList share."""
    stem, _, index = branch.label.rpartition(".")
    part = branch.part
    own = "" if index.isdigit() else branch.label
    return stem, own, part.kind, part.parameters, part.macs, outline(branch)


def outline(branch: Branch) -> tuple[object, ...]:
    """The names within a branch."""
    return tuple((inner.label, outline(inner)) for inner in branch.inside)


def add_up(run: Sequence[Branch]) -> Branch:
    """Equal siblings as one branch with summed costs."""
    first = run[0]
    if len(run) == 1:
        return first
    last = run[-1].label.rpartition(".")[2]
    return Branch(
        Part(
            first.part.name,
            f"{len(run)} × {first.part.kind}",
            sum(branch.part.parameters for branch in run),
            sum(branch.part.macs for branch in run),
            sum(branch.part.activation_bytes for branch in run),
        ),
        f"{first.label}–{last}",
        [
            replace(add_up(same), label=same[0].label)
            for same in zip(*(branch.inside for branch in run), strict=True)
        ],
    )


def walk(branch: Branch, depth: int, lead: str = "") -> Iterator[tuple[str, Branch]]:
    """Branches from the root down, each with its tree lines."""
    yield lead, branch
    if depth == 0:
        return
    stem = lead.replace("├─ ", "│  ").replace("└─ ", "   ")
    for inner in branch.inside:
        fork = "└─ " if inner is branch.inside[-1] else "├─ "
        yield from walk(inner, depth - 1, stem + fork)
