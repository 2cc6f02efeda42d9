"""`t2t study`: compare several recipes, and with published results."""

from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional

from t2t.commands.options import (
    INTERRUPTED,
    CodeOption,
    CompileOption,
    DeviceOption,
    JsonFlag,
    PrecisionOption,
    SetOption,
    at_least,
    at_most,
    option,
    run_code,
    warn,
)
from t2t.config import check_contradictions
from t2t.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType

    from t2t.lab.studies.forecast import ArmForecast
    from t2t.lab.studies.study import Study
    from t2t.training.runtime import Runtime


def study(
    name: Annotated[
        Positional[str], option("Name of a study; without it, list all.", "", "[NAME]")
    ] = "",
    *,
    data: Annotated[
        str | None, option("Images to train on.", "(default: the recipe's)", "SOURCE")
    ] = None,
    seeds: Annotated[
        tuple[int, ...], option("Seeds of every arm.", "(default: 0 1 2)", "N...")
    ] = (0, 1, 2),
    epochs: Annotated[
        int | None, option("Epochs of every arm.", "(default: the study's)", "N")
    ] = None,
    only: Annotated[
        tuple[str, ...], option("Arms to train.", "(default: all)", "ARM...")
    ] = (),
    folder: Annotated[
        str, option("Folder of runs and tables.", "(default: runs/studies)", "PATH")
    ] = "runs/studies",
    set: SetOption = (),
    code: CodeOption = (),
    device: DeviceOption = None,
    precision: PrecisionOption = None,
    compile: CompileOption = "auto",
    dry_run: Annotated[
        bool, option("Print the arms, their cost and the time, without training.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Train the arms of a study with several seeds and compare them.

    Run the same command again to resume. Studies in one folder share the runs of arms
    that they have in common.

    Examples:
      t2t study
      t2t study tokens --data path/to/cifar10 --dry-run
      t2t study tokens --data path/to/cifar10
      t2t study positions --data path/to/cifar10 --seeds 0 1 --epochs 30 --only 1d none
    """
    if not name:
        list_studies(json)
        return
    if any(word.partition("=")[0].strip() == "seed" for word in set):
        raise UserError("A study trains several seeds: give --seeds, not --set seed.")
    if len({*seeds}) < len(seeds):
        raise UserError("--seeds takes one number or more, each once: --seeds 0 1 2.")
    for seed in seeds:
        at_most(2**32 - 1, "--seeds", at_least(0, "--seeds", seed))

    run_code(code)

    from pathlib import Path

    chosen = open_study(name, data, epochs, set)
    root = Path(folder).expanduser()
    if dry_run:
        from t2t.lab.studies.forecast import forecast
        from t2t.screen import print_json, print_page

        rows = forecast(chosen, seeds, root, only)
        if json:
            print_json([forecast_row(row) for row in rows])
        else:
            print_page(lambda width: forecast_page(chosen, rows))
        return

    from t2t.training.runtime import Runtime

    runtime = Runtime(
        device=device,
        precision=precision,  # type: ignore[arg-type]
        compile=compile,
    )
    train_study(chosen, seeds, root, only, runtime, json)


def list_studies(json: bool) -> None:
    """Prints the studies with their questions and arms."""
    from rich import box
    from rich.table import Table

    from t2t.lab.studies import STUDIES
    from t2t.screen import print_json, print_page

    studies = [make() for make in STUDIES.values()]
    if json:
        print_json(
            [
                {"study": each.name, "question": each.question, "arms": [*each.arms]}
                for each in studies
            ]
        )
        return
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("study", style="cyan", no_wrap=True)
    table.add_column("question", overflow="fold")
    table.add_column("arms", overflow="fold")
    for each in studies:
        table.add_row(each.name, each.question, ", ".join(each.arms))
    print_page(lambda width: table)


def open_study(
    name: str, data: str | None, epochs: int | None, settings: tuple[str, ...]
) -> "Study":
    """The study of that name, with the options applied to every arm."""
    from dataclasses import replace

    from t2t.lab.studies import find_study
    from t2t.recipes.settings import apply_settings, schedule_notes
    from t2t.training.recipe import Recipe

    check_contradictions({"data": data, "epochs": epochs}, settings)
    chosen = find_study(name)
    check_not_compared(chosen, settings)

    def change(recipe: Recipe) -> Recipe:
        recipe = apply_settings(recipe, epochs, settings)
        return recipe if data is None else replace(recipe, data=data)

    changed = chosen.changed(change)
    first = next(iter(chosen.arms))
    warn(*schedule_notes(chosen.arms[first], changed.arms[first], settings))
    return changed


def check_not_compared(chosen: "Study", settings: tuple[str, ...]) -> None:
    """Raises an error for a setting in which the arms differ."""
    from t2t.config import assignment, to_json

    recipes = [to_json(recipe) for recipe in chosen.arms.values()]
    for word in settings:
        path, _ = assignment(word)
        values = [value_at(recipe, path) for recipe in recipes]
        if any(value != values[0] for value in values):
            raise UserError(
                f"--set {path} is not allowed: the arms of {chosen.name} differ in it; "
                "set what they have in common."
            )


def value_at(plain: Any, path: str) -> Any:
    """The value at a dotted path of a config in JSON, or None."""
    for name in path.split("."):
        plain = plain.get(name) if isinstance(plain, dict) else None
    return plain


def train_study(
    chosen: "Study",
    seeds: tuple[int, ...],
    root: "Path",
    only: tuple[str, ...],
    runtime: "Runtime",
    json: bool,
) -> None:
    """Trains the runs that are missing and prints the table."""
    import sys

    from t2t.formatting import counted
    from t2t.lab.studies.report import as_json, markdown
    from t2t.lab.studies.run import run_study
    from t2t.screen import print_json

    def warn(sentence: str) -> None:
        print(sentence, file=sys.stderr, flush=True)

    result = run_study(
        chosen, seeds, root, only=only, runtime=runtime, warn=warn, quiet=json
    )
    if json:
        print_json(as_json(result))
    elif result.arms:
        print(f"\n{markdown(result)}\nFolder: {root / chosen.name}")
    elif not result.failed:
        print("No run finished; run the same command to resume.")
    if result.failed:
        runs = counted(len(result.failed), "run")
        raise UserError(
            f"{runs} of {chosen.name} failed, for the reasons printed above; fix them "
            "and run the same command to resume."
        )
    done = {name: len(arm.results) for name, arm in result.arms.items()}
    if any(done.get(name, 0) < len(seeds) for name in chosen.chosen(only)):
        sys.exit(INTERRUPTED)


def forecast_row(row: "ArmForecast") -> dict[str, object]:
    """An arm's forecast for programs."""
    return {
        "arm": row.arm,
        "recipe": row.recipe,
        "model": row.model,
        "parameters": row.cost.parameters,
        "macs": row.cost.macs,
        "epochs": row.epochs,
        "runs": row.num_runs,
        "done": row.num_done,
        "petamacs": round(row.petamacs, 3),
        "hours_left": round(row.hours_left, 4),
        "measured": row.is_measured,
    }


def forecast_page(chosen: "Study", rows: "list[ArmForecast]") -> "RenderableType":
    """The arms with their costs, and the total."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from t2t.lab.studies.forecast import GPU

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("arm", style="cyan", no_wrap=True)
    table.add_column("model", no_wrap=True)
    on_gpu = "" if any(row.is_measured for row in rows) else f" on one {GPU}"
    for heading in ("params M", "MACs G", "epochs", "done", f"time per run{on_gpu}"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.arm,
            row.model,
            f"{row.cost.parameters / 1e6:.2f}",
            f"{row.cost.macs / 1e9:.3f}",
            str(row.epochs),
            f"{row.num_done} of {row.num_runs}",
            format_seconds(3600 * row.hours),
        )
    total = Text(forecast_sentence(rows))
    return Group(Text(chosen.question), Text(), table, Text(), total)


def forecast_sentence(rows: "list[ArmForecast]") -> str:
    """The work left, its time, and where the estimate comes from."""
    from t2t.formatting import counted
    from t2t.lab.studies.forecast import GPU

    macs = format_macs(1e15 * sum(row.petamacs for row in rows))
    left = [row for row in rows if row.num_left]
    if not left:
        return f"All runs are done, {macs} in all."
    seconds = format_seconds(3600 * sum(row.hours_left for row in left))
    runs = counted(sum(row.num_left for row in left), "run")
    total = f"{runs} to do, {macs} in all; {seconds} without compiling, "
    predicted = f"on one {GPU} as docs/scaling.md predicts; on a CPU, many times that."
    measured = [row.arm for row in left if row.is_measured]
    if not measured:
        return total + predicted
    total += f"{', '.join(measured)} as long as finished seeds took"
    is_all = len(measured) == len(left)
    return f"{total}." if is_all else f"{total}, the others {predicted}"


def format_seconds(seconds: float) -> str:
    """A predicted time."""
    from t2t.formatting import duration

    return "less than 1 s" if seconds < 1 else f"about {duration(seconds)}"


def format_macs(macs: float) -> str:
    """A number of MACs with a power of ten."""
    powers = {1e18: "10¹⁸", 1e15: "10¹⁵", 1e12: "10¹²"}
    unit = next((each for each in powers if macs >= each), 1e9)
    return f"{macs / unit:.3g} × {powers.get(unit, '10⁹')} MACs"
