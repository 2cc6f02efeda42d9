"""The recipe that the options of `t2t train` and `t2t.train` choose."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from t2t.config import check_contradictions, set_value, value_of
from t2t.data.label_config import (
    NO_LABEL_CONFIG,
    LabelConfig,
)
from t2t.errors import UserError
from t2t.models.config import Size
from t2t.models.pretrained import Pretrained, read_pretrained
from t2t.recipes.distillation import with_teacher
from t2t.recipes.fine_tuning import (
    fine_tuning,
    head_alone,
    head_alone_by_default,
    with_weights,
)
from t2t.recipes.open_recipe import (
    DIGITS,
    UNNAMED,
    check_is_no_folder,
    open_recipe,
    with_data,
)
from t2t.recipes.settings import check_model, schedule_notes, with_settings
from t2t.training.check_names import check_names
from t2t.training.recipe import Recipe

OPTION_NAMES = {
    "weights": "--from",
    "task_args.teacher": "--teacher",
    "image_size": "--image-size",
}
"""Options by the fields that they set, where the names differ."""


@dataclass(frozen=True, kw_only=True)
class RecipeOptions:
    """Options of `t2t train` that a result depends on."""

    data: str | None = None
    labels: LabelConfig = NO_LABEL_CONFIG
    """Where the labels are: `--labels`, `--label-columns` and `--label-pattern`."""
    weights: str | None = None
    """Weights to start from: `--from`."""
    freeze: bool = False
    image_size: Size | None = None
    teacher: str | None = None
    distill: str | None = None
    distill_token: bool = False
    epochs: int | None = None
    seed: int | None = None
    balance: str | None = None
    keep: str | None = None
    patience: int | None = None

    def by_field(self) -> dict[str, Any]:
        """The options that set one field of a recipe, by its name."""
        size = self.image_size and ",".join(map(str, dict.fromkeys(self.image_size)))
        return {
            "data": self.data,
            "weights": self.weights,
            "freeze": self.freeze,
            "image_size": size,
            "task_args.teacher": self.teacher,
            "epochs": self.epochs,
            "seed": self.seed,
            "balance": self.balance,
            "keep": self.keep,
            "patience": self.patience,
        }


def choose_recipe(
    recipe: Recipe | str, options: RecipeOptions, settings: Sequence[str] = ()
) -> tuple[Recipe, list[str]]:
    """The recipe with all options and settings applied, and notes for the log."""
    check_contradictions(options.by_field(), settings, OPTION_NAMES)
    words = tuple(settings)
    weights = options.weights or set_value("weights", words)
    start = None
    if weights is not None and weights.lower() != "none":
        start = read_pretrained(weights, set_value("model", words))
    base = base_recipe(recipe, start, options, words)
    if options.seed is not None:
        if options.seed < 0:
            raise UserError(f"--seed {options.seed} is too small: give 0 or more.")
        words = (f"seed={options.seed}", *words)
    if options.image_size is not None:
        words = (f"image_size={list(options.image_size)}", *words)
    for name in ("balance", "keep", "patience"):
        if (value := getattr(options, name)) is not None:
            words = (f"{name}={value}", *words)
    chosen = with_settings(base, options.epochs, words)
    notes = schedule_notes(base, chosen, words)
    distilled = with_teacher(
        chosen, options.teacher, options.distill, token=options.distill_token
    )
    # Settings such as task_args.temperature may be those of the teacher's task.
    check_names(distilled)
    if words or distilled is not chosen:
        check_model(distilled)
    return distilled, [*notes, *start_notes(distilled, start)]


def base_recipe(
    recipe: Recipe | str,
    start: Pretrained | None,
    options: RecipeOptions,
    settings: Sequence[str],
) -> Recipe:
    """The recipe before settings, with its data and the weights to start from."""
    if start is not None and recipe == UNNAMED:
        base = fine_tuning(
            start,
            options.data or set_value("data", settings) or DIGITS,
            options.labels,
            image_size=options.image_size or given("image_size", settings),
            epochs=options.epochs or given("epochs", settings),
        )
        return head_alone_by_default(base) if options.freeze else base
    if isinstance(recipe, Recipe):
        base = with_data(recipe, options.data, options.labels)
    else:
        data = options.data
        other = set_value("data", settings)
        if recipe == UNNAMED:  # which the data chooses
            data = data or other
        base = open_recipe(
            recipe,
            data,
            set_value("model", settings),
            options.labels,
            options.epochs or given("epochs", settings),
            options.image_size or given("image_size", settings),
        )
        if data is None and other is None:
            check_is_no_folder(recipe, base)
    if start is not None:
        base = with_weights(base, start)
    return head_alone(base) if options.freeze else base


def given(name: str, settings: Sequence[str]) -> Any:
    """The value that settings give a field of a recipe, if any."""
    text = set_value(name, settings)
    return None if text is None else value_of(Recipe, name, text)


def start_notes(recipe: Recipe, start: Pretrained | None) -> list[str]:
    """Sentences on what is assumed of weights, and on another image size."""
    if start is None:
        return []
    if recipe.image_size == start.image_size:
        return [*start.notes]
    before, now = (
        f"{height}×{width}" for height, width in (start.image_size, recipe.image_size)
    )
    return [
        *start.notes,
        f"The weights are for images of {before} pixels, and this run trains at {now}.",
    ]
