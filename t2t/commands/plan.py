"""`t2t plan`: predict time, memory and network of a run on many GPUs."""

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional

from t2t.commands.options import (
    CodeOption,
    JsonFlag,
    SetOption,
    at_least,
    option,
    run_code,
)
from t2t.config import check_contradictions
from t2t.errors import UserError

if TYPE_CHECKING:
    from t2t.training.forecast.plan import Plan


def plan(
    recipe: Annotated[
        Positional[str],
        option(
            "A name from `t2t recipes`, FILE.py:NAME, a recipe.json or a run folder.",
            "(required)",
            "RECIPE",
        ),
    ],
    *,
    gpus: Annotated[int, option("Number of GPUs.", "(default: 8)", "N")] = 8,
    gpu: Annotated[
        Literal["H200", "H100", "A100"],
        option("GPU: H200, H100 or A100.", "(default: H200)"),
    ] = "H200",
    parallelism: Annotated[
        Literal["ddp", "fsdp", "hybrid"],
        option("Parallelism: ddp, fsdp or hybrid.", "(default: ddp)"),
    ] = "ddp",
    per_node: Annotated[int, option("GPUs per node.", "(default: 8)", "N")] = 8,
    images: Annotated[
        int, option("Training images.", "(default: ImageNet's 1,281,167)", "N")
    ] = 1_281_167,
    micro_batch: Annotated[
        int | None, option("Images per forward pass and GPU.", "", "N")
    ] = None,
    rate: Annotated[
        float | None,
        option("Measured images/s of one GPU.", "", "IMAGES/S"),
    ] = None,
    measured: Annotated[
        str | None,
        option("Rows of `t2t bench --out`: step times by batch size.", "", "FILE"),
    ] = None,
    set: SetOption = (),
    code: CodeOption = (),
    rehearse: Annotated[
        bool, option("Also run one step on the CPU, as one of N processes.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Predict time, memory and network traffic of a run on many GPUs.

    Examples:
      t2t plan imagenet.t2t_vit_14 --gpus 8
      t2t plan imagenet.t2t_vit_14 --measured speed.json
      t2t plan imagenet.vit_huge_14 --gpus 64 --parallelism hybrid
      t2t plan imagenet.t2t_vit_14 --gpus 1024 --set batch_size=4096 --rehearse
    """
    at_least(1, "--gpus", gpus)
    at_least(1, "--per-node", per_node)
    at_least(1, "--micro-batch", micro_batch)
    if rate is not None and not 0 < rate < math.inf:
        raise UserError(f"--rate {rate:g} must be more than 0, in images/s.")
    if rate is not None and measured is not None:
        raise UserError("--rate and --measured are mutually exclusive; give one.")

    run_code(code)

    from t2t.analysis.cost import count
    from t2t.models.without_weights import without_weights
    from t2t.recipes.open_recipe import open_recipe
    from t2t.recipes.settings import apply_settings
    from t2t.screen import print_json, print_page
    from t2t.training.forecast import plan as planning
    from t2t.training.forecast.measured_steps import measured_steps
    from t2t.training.initial_state import build_model

    check_contradictions({}, set)
    chosen = apply_settings(open_recipe(recipe), None, set)
    steps = None
    if measured is not None:
        steps = measured_steps(Path(measured), chosen, gpu, parallelism, gpus)
    with without_weights():
        model = build_model(chosen, num_classes=1000)
    cost = count(model, chosen.image_size)
    predicted = planning.plan(
        chosen,
        gpus,
        gpu=gpu,
        parallelism=parallelism,
        per_node=per_node,
        num_images=at_least(1, "--images", images),
        micro_batch=micro_batch,
        parameters=cost.parameters,
        gmacs=cost.macs / 1e9,
        activation_bytes=cost.activation_bytes_bf16,
        images_per_second=rate,
        measured=steps,
    )
    if json:
        print_json(predicted.as_json())
    else:
        print_page(lambda width: plan_page(predicted))
    if rehearse:
        from t2t.lab.rehearsal import rehearse as step_once

        rehearsal = step_once(
            chosen,
            gpus,
            parallelism=parallelism,
            per_node=min(per_node, gpus),
        )
        who = "Process 0 copies" if parallelism == "ddp" else "Each process copies"
        print(
            f"Rehearsed one step as 1 of {rehearsal.num_processes:,} processes in "
            f"{rehearsal.seconds:.0f} s: {rehearsal.state_bytes / 2**20:,.1f} MiB of "
            f"state, {rehearsal.sent_bytes / 2**20:,.1f} MiB sent per step. {who} "
            f"{rehearsal.copied_bytes / 2**20:,.1f} MiB for a checkpoint "
            f"({rehearsal.copy_seconds:.2g} s here); a thread writes them during "
            "the next steps.",
            file=sys.stderr,
        )


def plan_page(predicted: "Plan") -> str:
    """A prediction as lines of text."""
    shards = f" ({predicted.parallelism})" * (predicted.num_gpus > 1)
    title = (
        f"{predicted.recipe} on {predicted.num_gpus:,} {predicted.gpu}"
        f"{shards}, {predicted.images_per_gpu} images per GPU and step"
    )
    lines = [f"{name:<17}{text}" for name, text in predicted.rows()]
    note = "A prediction; docs/scaling.md explains how it is made."
    return "\n".join([title, "", *lines, "", *predicted.sources(), note])
