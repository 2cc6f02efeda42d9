"""The default recipe for a user's images, by their number and size."""

from dataclasses import dataclass, replace

from t2t.data.label_config import NO_LABEL_CONFIG, LabelConfig
from t2t.data.sources import Source, open_splits
from t2t.data.typical_size import typical_side
from t2t.models.config import Size
from t2t.models.zoo import CONFIGS
from t2t.recipes.photos import photo_recipe, stride_for
from t2t.recipes.small_images import from_scratch
from t2t.training.recipe import Recipe, TokenDropping

SIDES = (96, 128, 160, 192, 224)
"""Image sizes for photographs; 32 and 64 are those for small images."""
SMALL_SIDE = 64
MIN_EPOCHS, MAX_EPOCHS = 30, 300
ENOUGH_FOR_LARGE = 4_000
"""Training images from which the larger model is used."""


@dataclass(frozen=True)
class Scale:
    """The model, the image size and the stride of the default recipe."""

    model: str
    side: int
    stride: int
    """Pixels between two tokens."""

    def __str__(self) -> str:
        return f"{self.model} at {self.side} px with {self.tokens} tokens"

    @property
    def tokens(self) -> int:
        """The number of tokens."""
        return (self.side // self.stride) ** 2


def default_recipe(
    data: str,
    model: str | None = None,
    labels: LabelConfig = NO_LABEL_CONFIG,
    *,
    epochs: int | None = None,
    scale: Scale | None = None,
    image_size: Size | None = None,
) -> Recipe:
    """A recipe for the number and size of the images, or for a model.

    By default at the first of `scales`.
    """
    # Labels do not matter yet: they are checked with the task.
    train = open_splits(data, labels=False, label_config=labels).train
    scale = scale or scales(train)[0]
    epochs = epochs or num_epochs(len(train))
    if image_size is not None and min(scale.side, *image_size) > SMALL_SIDE:
        recipe = photo_recipe(
            "own",
            data,
            num_images=len(train),
            image_size=image_size,
            epochs=epochs,
            model=scale.model,
        )
    else:
        recipe = recipe_at(scale, data, len(train), epochs)
    recipe = replace(recipe, labels=labels)
    return recipe if model in (None, recipe.model) else with_model(recipe, model)


def recipe_at(scale: Scale, data: str, num_images: int, epochs: int) -> Recipe:
    """The default recipe at a scale."""
    if scale.side <= SMALL_SIDE:
        # Its warm-up fits into this many epochs, and is shortened with them.
        recipe = from_scratch("own", scale.model, data, scale.side, MAX_EPOCHS)
        warmup = min(recipe.schedule.warmup_epochs, epochs / 10)
        return replace(
            recipe,
            epochs=epochs,
            evaluate_every=max(epochs // 20, 1),
            batch_size=min(fitting_batch(num_images), 512),
            schedule=replace(recipe.schedule, warmup_epochs=warmup),
        )
    return photo_recipe(
        "own",
        data,
        num_images=num_images,
        image_size=(scale.side, scale.side),
        epochs=epochs,
        model=scale.model,
        stride=scale.stride,
    )


def scales(train: Source) -> list[Scale]:
    """The scales of the default recipe for these images, the most accurate first."""
    side = typical_side(train)
    if side <= 96:
        size = 32 if side <= 48 else 64
        return [Scale(f"t2t_vit_7_{size}", size, size // 16)]
    full = max(each for each in SIDES if each <= side)
    largest = "t2t_vit_14" if len(train) >= ENOUGH_FOR_LARGE else "t2t_vit_7"
    found = [
        Scale(model, full, stride_for((full, full)))
        for model in dict.fromkeys((largest, "t2t_vit_7"))
    ]
    for stride in (8, 16):
        for size in (128, 96):
            smaller = Scale("t2t_vit_7", size, stride)
            if size <= full and smaller.tokens < found[-1].tokens:
                found.append(smaller)
    return found


def num_epochs(num_images: int) -> int:
    """300 epochs for few images, 190 for 10,000, 60 for 100,000, 30 for many."""
    epochs = round(60 * (100_000 / num_images) ** 0.5)
    return min(max(epochs, MIN_EPOCHS), MAX_EPOCHS)


def with_model(recipe: Recipe, model: str) -> Recipe:
    """The recipe with another model, without options of the first model.

    Some timm models have no matrices for Muon and no drop path.
    """
    recipe = replace(recipe, model=model, model_args={}, token_dropping=TokenDropping())
    if model in CONFIGS:
        return recipe
    return replace(recipe, drop_path=0.0, optimizer=recipe.optimizer.as_adamw())


def fitting_batch(num_images: int) -> int:
    """A power of two for about 16 steps per epoch, at most the number of images."""
    return min(1 << max(3, (num_images // 16).bit_length() - 1), num_images)
