"""Speed: how many images a second a model trains on or looks at."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional

from t2t.commands.bench_options import (
    Precision,
    check_left_out,
    check_numbers,
    check_words,
    recipes_asked,
    runtimes_asked,
)
from t2t.commands.options import (
    DeviceOption,
    JsonFlag,
    check_writable,
    option,
    warn,
)
from t2t.errors import UserError

if TYPE_CHECKING:
    from t2t.lab.bench.cases import Case
    from t2t.lab.bench.measure import Measured
    from t2t.lab.bench.profiling import Profile


def bench(
    models: Annotated[
        Positional[tuple[str, ...]],
        option("Names of `t2t models`, or any of timm's.", "", "[MODEL...]"),
    ] = (),
    *,
    batch: Annotated[
        tuple[int, ...],
        option("Images to a step.", "(default: 256, on a CPU 8)", "N..."),
    ] = (),
    precision: Annotated[
        tuple[Precision, ...],
        option("One or several.", "(default: bf16 on CUDA, else fp32)"),
    ] = (),
    mode: Annotated[
        Literal["train", "infer", "both"], option("What to time.", "(default: train)")
    ] = "train",
    image_size: Annotated[
        tuple[int, ...],
        option("Pixels of a side.", "(default: the model's, or the recipe's)", "N..."),
    ] = (),
    launch: Annotated[
        Literal["graph", "eager_graph", "compiled", "eager"] | None,
        option(
            "Compiled or as written, with or without one CUDA graph of all kernels.",
            "(default: graph on CUDA, else eager)",
        ),
    ] = None,
    device: DeviceOption = None,
    seconds: Annotated[
        float, option("Time to measure each row for.", "(default: 3)", "N")
    ] = 3.0,
    profile: Annotated[bool, option("Name the kernels that take longest.")] = False,
    grow: Annotated[
        tuple[Literal["size", "batch", "depth"], ...],
        option("Also smaller and larger ones, and a picture beside --out.", ""),
    ] = (),
    data: Annotated[
        str | None,
        option("Train from these files by the trainer's own step.", "", "SOURCE"),
    ] = None,
    recipe: Annotated[
        str | None,
        option(
            "The trainer's own step, of this recipe.",
            "(default with --data: ImageNet's)",
            "RECIPE",
        ),
    ] = None,
    repeat: Annotated[
        int | None,
        option("Times to go through few files in an epoch.", "(default: enough)", "N"),
    ] = None,
    resident: Annotated[
        bool, option("Keep the files' images decoded on the device.")
    ] = False,
    workers: Annotated[
        int | None, option("Workers that read images.", "(default: all cores)", "N")
    ] = None,
    out: Annotated[
        str | None, option("Keep the rows in this JSON file.", "", "PATH")
    ] = None,
    markdown: Annotated[bool, option("Print a table to paste.")] = False,
    json: JsonFlag = False,
) -> None:
    """Measure images a second, memory and the share of what the hardware can do.

    A training step is all of it: forward, loss, backward, optimizer and average.

    Examples:
      t2t bench t2t_vit_14 deit_small_patch16_224 --mode both
      t2t bench t2t_vit_14 --batch 128 256 512 --precision bf16 fp16 --out rows.json
      t2t bench t2t_vit_14 --profile
      t2t bench t2t_vit_14 --grow size batch depth --out growth.json
      t2t bench t2t_vit_14 --data path/to/imagenet
      t2t bench --recipe cifar10.t2t_vit_7
    """
    if json and markdown:
        raise UserError("--json and --markdown are two forms of the same; give one.")
    check_words(models, recipe, data, mode, grow, out)
    if data is None:
        check_left_out(
            "without --data no files are read",
            {"--repeat": repeat, "--resident": resident, "--workers": workers},
        )
    check_numbers(batch, image_size, seconds, repeat)

    from t2t.lab.bench.cases import REPLAYED
    from t2t.lab.bench.rows import read_rows
    from t2t.training.distributed import find_device
    from t2t.training.run_folder import command_line

    path = None if out is None else Path(out).expanduser()
    if path is not None:
        read_rows(path)  # what holds something else is refused before anything runs
        check_writable("--out", path)
    chosen = find_device(device)
    on_cuda = chosen.type == "cuda"
    if launch in REPLAYED and not on_cuda:
        raise UserError(f"--launch {launch} needs CUDA; on {chosen} give another.")
    precisions = precision or (("bf16",) if on_cuda else ("fp32",))
    command = command_line()
    bases: list[Case] = []
    if data is not None or recipe is not None:
        from t2t.lab.bench.trainer import Files, measure_recipes

        measured = measure_recipes(
            recipes_asked(models, recipe, image_size, batch),
            runtimes_asked(device, precisions, launch, workers),
            chosen,
            None if data is None else Files(data, repeat, resident),
            command,
            seconds=seconds,
            profiled=profile,
        )
    else:
        from t2t.lab.bench.cases import all_cases
        from t2t.lab.bench.growth import growing
        from t2t.lab.bench.measure import measure_cases

        bases = all_cases(
            models,
            ("train", "infer") if mode == "both" else (mode,),
            image_size,
            batch or ((256,) if on_cuda else (8,)),
            precisions,
            launch or ("graph" if on_cuda else "eager"),
        )
        cases = [case for base in bases for case in growing(base, grow)]
        measured = measure_cases(
            cases, chosen, command, seconds=seconds, profiled=profile
        )
    show(measured, path, json, markdown, profiled=profile)
    if grow and path is not None:
        from t2t.lab.bench.growth import draw_growth
        from t2t.lab.bench.timing import name_of

        place = path.with_suffix(".png")
        gpu = name_of(chosen)
        warn(f"Picture: {draw_growth(read_rows(path), bases, grow, gpu, place)}")


def show(
    measured: "Iterable[Measured]",
    path: Path | None,
    json: bool,
    markdown: bool,
    profiled: bool = False,
) -> None:
    """Keeps and tells each row when it is there, and shows them all at the end."""
    from t2t.lab.bench.rows import in_words, merge_row, row_table
    from t2t.lab.bench.rows import markdown as to_paste
    from t2t.screen import print_json, print_page

    rows: list[dict[str, Any]] = []
    try:
        for row, profile in measured:
            rows.append(row)
            if path is not None:
                merge_row(path, row)
            warn(in_words(row))
            if profiled and profile is not None:
                show_kernels(profile)
    finally:  # stopped in the middle, it still tells what it has
        if rows and json:
            print_json(rows)
        elif rows and markdown:
            print(to_paste(rows))
        elif rows:
            print_page(lambda width: row_table(rows, width))


def show_kernels(profile: "Profile") -> None:
    """Prints where a step's time went."""
    from t2t.lab.bench.rows import kernel_table
    from t2t.screen import print_page

    print_page(lambda width: kernel_table(profile))
