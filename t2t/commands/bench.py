"""`t2t bench`: measure training and inference speed."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional

from t2t.commands.bench_options import (
    Precision,
    check_combination,
    check_numbers,
    check_unused,
    select_recipes,
    select_runtimes,
)
from t2t.commands.options import (
    DEFAULT_PRECISION,
    CodeOption,
    DeviceOption,
    JsonFlag,
    check_writable,
    option,
    run_code,
    warn,
)
from t2t.errors import UserError

if TYPE_CHECKING:
    from t2t.lab.bench.cases import Case
    from t2t.lab.bench.measure import MeasuredRow
    from t2t.lab.bench.profiling import Profile


def bench(
    models: Annotated[
        Positional[tuple[str, ...]],
        option("Names from `t2t models`, or timm models.", "", "[MODEL...]"),
    ] = (),
    *,
    batch_size: Annotated[
        tuple[int, ...],
        option("Images per step.", "(default: 256, on a CPU 8)", "N..."),
    ] = (),
    precision: Annotated[
        tuple[Precision, ...],
        option("Precision.", DEFAULT_PRECISION),
    ] = (),
    mode: Annotated[
        Literal["train", "infer", "both"],
        option("Training or inference.", "(default: train)"),
    ] = "train",
    image_size: Annotated[
        tuple[int, ...],
        option(
            "Image sizes: sides of squares.",
            "(default: the model's, or the recipe's)",
            "N...",
        ),
    ] = (),
    launch: Annotated[
        Literal["graph", "eager_graph", "compiled", "eager"] | None,
        option(
            "How steps run: compiled or eager, with or without a CUDA graph.",
            "(default: graph on CUDA, else eager)",
        ),
    ] = None,
    code: CodeOption = (),
    device: DeviceOption = None,
    seconds: Annotated[
        float, option("Seconds to measure per row.", "(default: 3)", "N")
    ] = 3.0,
    profile: Annotated[bool, option("List the kernels that take longest.")] = False,
    grow: Annotated[
        tuple[Literal["size", "batch", "depth"], ...],
        option(
            "Also measure other sizes, batches or depths; draw the rows beside --out, "
            "as PATH.png.",
            "",
        ),
    ] = (),
    data: Annotated[
        str | None,
        option("Train from these files with the trainer's own step.", "", "SOURCE"),
    ] = None,
    recipe: Annotated[
        str | None,
        option(
            "Measure the trainer's own step with this recipe.",
            "(default with --data: ImageNet's)",
            "RECIPE",
        ),
    ] = None,
    repeat: Annotated[
        int | None,
        option("Repeat the files this often per epoch.", "(default: enough)", "N"),
    ] = None,
    parallelism: Annotated[
        Literal["ddp", "fsdp", "hybrid"] | None,
        option(
            "Measure the trainer's own step as one process of many: in a process group "
            "of one.",
            "",
        ),
    ] = None,
    resident: Annotated[bool, option("Keep the decoded images on the device.")] = False,
    workers: Annotated[
        int | None, option("Data loading workers.", "(default: all cores)", "N")
    ] = None,
    out: Annotated[
        str | None, option("Write the rows into this JSON file.", "", "PATH")
    ] = None,
    markdown: Annotated[bool, option("Print a Markdown table.")] = False,
    json: JsonFlag = False,
) -> None:
    """Measure images/s, memory and utilisation of a model.

    A training step includes forward, loss, backward, optimizer and EMA.

    Examples:
      t2t bench t2t_vit_14 deit_small_patch16_224 --mode both
      t2t bench t2t_vit_14 --batch-size 128 256 --precision bf16 fp16 --out rows.json
      t2t bench t2t_vit_14 --profile
      t2t bench t2t_vit_14 --grow size batch depth --out growth.json
      t2t bench t2t_vit_14 --data path/to/imagenet
      t2t bench --recipe cifar10.t2t_vit_7
      t2t bench t2t_vit_14 --parallelism ddp
    """
    if json and markdown:
        raise UserError("--json and --markdown are mutually exclusive; give one.")
    check_combination(models, recipe, data, parallelism, mode, grow, out)
    if data is None:
        check_unused(
            "without --data no files are read",
            {"--repeat": repeat, "--resident": resident, "--workers": workers},
        )
    check_numbers(batch_size, image_size, seconds, repeat)

    run_code(code)

    from t2t.lab.bench.cases import REPLAYED
    from t2t.lab.bench.rows import read_rows
    from t2t.training.distributed import find_device
    from t2t.training.environment import command_line
    from t2t.training.runtime import default_precision

    path = None if out is None else Path(out).expanduser()
    if path is not None:
        read_rows(path)  # raises an error for another kind of file
        check_writable("--out", path)
        picture = path
        if grow:
            from t2t.lab.bench.growth import picture_beside

            picture = picture_beside(path)
            check_writable("The picture of --grow", picture)
    chosen = find_device(device)
    on_cuda = chosen.type == "cuda"
    if launch in REPLAYED and not on_cuda:
        raise UserError(f"--launch {launch} needs CUDA; on {chosen} give another.")
    precisions = precision or (default_precision(chosen),)
    command = command_line()
    bases: list[Case] = []
    if data is not None or recipe is not None or parallelism is not None:
        from t2t.lab.bench.measure_training import measure_recipes
        from t2t.lab.bench.trainer import Files

        measured = measure_recipes(
            select_recipes(models, recipe, image_size, batch_size),
            select_runtimes(device, precisions, launch, workers, on_cuda, parallelism),
            chosen,
            None if data is None else Files(data, repeat, resident),
            command,
            seconds=seconds,
            profiled=profile,
            in_group=parallelism is not None,
        )
    else:
        from t2t.lab.bench.cases import all_cases
        from t2t.lab.bench.growth import grown_cases
        from t2t.lab.bench.measure import measure_cases

        bases = all_cases(
            models,
            ("train", "infer") if mode == "both" else (mode,),
            image_size,
            batch_size or ((256,) if on_cuda else (8,)),
            precisions,
            launch or ("graph" if on_cuda else "eager"),
        )
        cases = [case for base in bases for case in grown_cases(base, grow)]
        measured = measure_cases(
            cases, chosen, command, seconds=seconds, profiled=profile
        )
    print_rows(measured, path, json, markdown, profiled=profile)
    if grow and path is not None:
        from t2t.lab.bench.growth import draw_growth
        from t2t.lab.bench.timing import device_name

        gpu = device_name(chosen)
        warn(f"Picture: {draw_growth(read_rows(path), bases, grow, gpu, picture)}")


def print_rows(
    measured: "Iterable[MeasuredRow]",
    path: Path | None,
    json: bool,
    markdown: bool,
    profiled: bool = False,
) -> None:
    """Prints and saves each row as it is measured, and a table at the end."""
    from t2t.lab.bench.rows import markdown_table, merge_row, row_line, row_table
    from t2t.screen import print_json, print_page

    rows: list[dict[str, Any]] = []
    try:
        for row, profile in measured:
            rows.append(row)
            if path is not None:
                merge_row(path, row)
            warn(row_line(row))
            if profiled and profile is not None:
                print_kernels(profile)
    finally:  # if interrupted, the rows so far are printed
        if rows and json:
            print_json(rows)
        elif rows and markdown:
            print(markdown_table(rows))
        elif rows:
            print_page(lambda width: row_table(rows, width))


def print_kernels(profile: "Profile") -> None:
    """Prints the kernels that take longest."""
    from t2t.lab.bench.rows import kernel_table
    from t2t.screen import print_page

    print_page(lambda width: kernel_table(profile))
