"""Advice after divergence: commands with a lower learning rate or fp32."""

import shlex
import sys
from collections.abc import Container, Mapping
from pathlib import Path

from t2t.torchrun import env_count
from t2t.training.checkpoint_files import checkpoint_step
from t2t.training.recipe import Recipe
from t2t.training.runtime import Runtime

# fp16 skips a few steps at the start, until its loss scale fits.
MAX_SKIPPED = {"bf16": 5, "fp32": 5, "fp16": 25}
"""Steps without a finite gradient in a row, after which a run stops."""
RATES = ("lr", "body_lr", "adamw_lr")
CLIP_NORM = 1.0


def divergence_advice(
    recipe: Recipe, runtime: Runtime, folder: Path, checkpoint: Path | None
) -> str:
    """Commands to resume or to start over, and the checkpoint, if there is one."""
    precise = {} if runtime.precision in (None, "fp32") else {"--precision": "fp32"}
    changes = safer_settings(recipe)
    start_over = "To start over with a lower learning rate, run"
    if checkpoint is None:
        return f"{start_over}\n  {retyped_command(changes, precise, '--fresh')}"
    # The checkpoint is of this recipe, so another recipe needs another folder.
    step = checkpoint_step(checkpoint)
    kept = f"The checkpoint of step {step:,} is kept in {checkpoint.parent}."
    if precise:
        command = retyped_command({}, precise)
        kept += f" To resume from it in full precision, run\n  {command}\n"
    other = folder.with_name(f"{folder.name}-lr{changes.get('optimizer.lr', '')}")
    options = {**precise, "--folder": str(other)}
    more = ["--fresh"] if other.exists() else []
    return f"{kept} {start_over}\n  {retyped_command(changes, options, *more)}"


def safer_settings(recipe: Recipe) -> dict[str, str]:
    """A third of every learning rate, and gradient clipping if there is none."""
    rates = {name: getattr(recipe.optimizer, name) for name in RATES}
    if recipe.optimizer.name != "muon":
        del rates["adamw_lr"]  # used with Muon only
    changes = {
        f"optimizer.{name}": f"{rate / 3:.1g}" for name, rate in rates.items() if rate
    }
    if not 0 < recipe.optimizer.clip_norm <= CLIP_NORM:
        changes["optimizer.clip_norm"] = f"{CLIP_NORM:g}"
    return changes


def retyped_command(
    changes: Mapping[str, str], options: Mapping[str, str], *more: str
) -> str:
    """The typed command with other settings and options."""
    words = sys.argv[1:]
    start = "t2t …"  # from Python, or in a study of many runs
    if words[:1] == ["train"]:
        start = shlex.join(["t2t", *without_options(words, changes, {*options, *more})])
    added = [word for option in options.items() for word in option]
    added += [word for each in changes.items() for word in ("--set", "=".join(each))]
    launcher = "torchrun … -m " if env_count("WORLD_SIZE") > 1 else ""
    return f"{launcher}{start} {shlex.join([*added, *more])}"


def without_options(
    words: list[str], fields: Container[str], options: Container[str]
) -> list[str]:
    """The words of a command without some options and --set fields."""
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        option, equals, value = word.partition("=")
        if not option.startswith("--"):
            kept.append(word)
            continue
        takes_value = option != "--fresh" and option != "--dry-run"
        typed = [word] if equals or not takes_value else [word, next(rest, "")]
        field = (value or typed[-1]).partition("=")[0]
        if not (option in options or (option == "--set" and field in fields)):
            kept += typed
    return kept
