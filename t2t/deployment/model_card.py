"""Model cards: what a model was trained on, how good it is and what it cannot do."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t2t.errors import on_one_line
from t2t.formatting import counted
from t2t.models.trained import TrainedModel
from t2t.training.recipe import Recipe

HUB_DATASETS = {
    "cifar10": "uoft-cs/cifar10",
    "cifar100": "uoft-cs/cifar100",
    "imagenet": "ILSVRC/imagenet-1k",
    "tiny-imagenet": "zh-plus/tiny-imagenet",
    "imagewoof": "frgfm/imagewoof",
    "imagenette": "frgfm/imagenette",
}
"""The hub's names of data sets."""
MAX_CLASSES = 50
"""Class names that a card lists."""


@dataclass(frozen=True)
class KnownAccuracy:
    """A measured top-1 accuracy in per cent."""

    top1: float
    images: str
    """On which images, in words."""


def hub_card(
    trained: TrainedModel,
    title: str,
    license_name: str,
    accuracy: KnownAccuracy | None,
    recipe: Recipe | None,
    num_parameters: int,
) -> str:
    """The README.md of a folder for the hub, with the hub's header."""
    size = "×".join(map(str, trained.image_size))
    data = recipe.data if recipe is not None else trained.data
    name = Path(data).name if data else ""
    parts = [
        f"---\n{header(trained, title, license_name, accuracy, name)}\n---",
        f"# {title}",
        f"{trained.name}, {num_parameters:,} parameters. It classifies images of "
        f"{size} pixels into {len(trained.class_names)} classes.",
        "## Use",
        usage(),
        "## Classes",
        class_list(trained),
        "## Data and recipe",
        origin(recipe, name),
        "## Accuracy",
        "Not measured."
        if accuracy is None
        else f"Top-1 {accuracy.top1:.2f} % on {accuracy.images}, one view per image.",
        "## Limits",
        limits(size, name or "its training", several=trained.is_multilabel),
    ]
    return "\n\n".join(parts) + "\n"


def header(
    trained: TrainedModel,
    title: str,
    license_name: str,
    accuracy: KnownAccuracy | None,
    data: str,
) -> str:
    """The YAML of a model card, by which the hub finds and describes a model."""
    from huggingface_hub import EvalResult, ModelCardData

    dataset = HUB_DATASETS.get(data, slug(data)) if data else ""
    results = []
    if accuracy is not None:
        results.append(
            EvalResult(
                task_type="image-classification",
                task_name="Image classification",
                dataset_type=dataset or "unknown",
                dataset_name=data or "unknown",
                metric_type="accuracy",
                metric_name="top-1 accuracy",
                metric_value=round(accuracy.top1 / 100, 4),
            )
        )
    card = ModelCardData(
        license=license_name,
        library_name="timm",
        pipeline_tag="image-classification",
        tags=["image-classification", "timm", "t2t-vit", slug(trained.name)],
        datasets=[dataset] if dataset else None,
        metrics=["accuracy"],
        model_name=title,
        eval_results=results or None,
    )
    return card.to_yaml().strip()


def slug(name: str) -> str:
    """A name in the letters that the hub allows."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "unknown"


def usage() -> str:
    """Lines of code that load the model."""
    return """```python
import timm
import t2t  # registers its models with timm

model = timm.create_model("hf-hub:OWNER/NAME", pretrained=True).eval()
config = timm.data.resolve_model_data_config(model)
transform = timm.data.create_transform(**config, is_training=False)
```

```python
import t2t

model = t2t.load("hf-hub:OWNER/NAME")  # or the path of this folder
```"""


def class_list(trained: TrainedModel) -> str:
    """The class names, or the first of them."""
    names = [in_cell(name) for name in trained.readable_names]
    shown = ", ".join(names[:MAX_CLASSES])
    more = len(names) - MAX_CLASSES
    return f"{shown} and {more} more (`config.json` has all)." if more > 0 else shown


def origin(recipe: Recipe | None, data: str) -> str:
    """What the model was trained on, and how."""
    if recipe is None:
        return f"Trained on {data or 'images that are not named'}."
    how = f"Recipe `{recipe.name}`, {counted(recipe.epochs, 'epoch')}, seed "
    return f"{data_sentence(recipe, data)} {how}{recipe.seed}."


def data_sentence(recipe: Recipe, data: str) -> str:
    """The training data, the starting weights and the teacher."""
    held = f", {recipe.holdout:,} of its training images left out"
    images = f"{data}{held if recipe.holdout else ''}"
    teacher = recipe.task_args.get("teacher")
    distilled = f" It was distilled from {named(teacher)}." if teacher else ""
    if recipe.weights:
        start = named(recipe.weights)
        return f"Trained on {images}, starting from the weights {start}.{distilled}"
    alone = "" if teacher else " and without pretrained weights"
    return f"Trained from scratch on {images}, without other images{alone}.{distilled}"


def named(weights: Any) -> str:
    """Weights by their URL, or by the name of their file or folder."""
    is_url = "://" in weights or weights.startswith("hf-hub:")
    return f"`{weights if is_url else Path(weights).name}`"


def in_cell(name: str) -> str:
    """A name as the text of a table cell."""
    return on_one_line(name).replace("|", "\\|")


def limits(size: str, data: str, *, several: bool) -> str:
    """The limits of a model; `several` predicts any number of labels per image."""
    outcome = (
        "may get some of them too"
        if several
        else "is assigned to one of them too, often with a high probability"
    )
    return "\n".join(
        [
            f"- It knows only these classes: an image of anything else {outcome}.",
            f"- Its input is {size} pixels: a photograph is shrunk to that and small "
            "objects are lost. Crop to the object first.",
            f"- It was trained on images like those of {data}: other views, drawings "
            "and several objects at once are out of distribution.",
            "- It is a demonstration and a starting point for fine-tuning, not a basis "
            "for decisions about people or safety.",
        ]
    )
