"""Which arguments of a command are weights, and which are images."""

import os
from collections.abc import Sequence
from pathlib import Path

from t2t.errors import UserError

EMPTY_LIST = "The list on standard input is empty; give one path per line."


def split_inputs(
    inputs: tuple[str, ...],
) -> tuple[str, tuple[str, ...]]:
    """Weights and images; the first input is the weights unless it names images."""
    if not inputs:
        return "", ()
    if names_images(inputs[0]):
        return "builtin", inputs
    return inputs[0], inputs[1:]


def check_images(
    inputs: tuple[str, ...], images: Sequence[str], instead: str = ""
) -> None:
    """Raises an error if there are no images, or a run among them."""
    if not images:
        raise UserError(no_images(inputs))
    for run in filter(is_run, images):
        raise UserError(
            f"{run} is a run, not images: give it once, before the images{instead}."
        )


def no_images(inputs: tuple[str, ...]) -> str:
    """An error message for a command line without images."""
    from t2t.data.image_files import is_image_name, is_url

    advice = "give files, folders, or - for a list."
    if not inputs:
        return f"No images are given; {advice}"
    first = inputs[0]
    if is_url(first) and is_image_name(first):
        return f"Images are not read from URLs: download {first} first."
    if is_url(first) or first == "builtin":
        return f"No images are given beside {first}; {advice}"
    if not Path(first).expanduser().exists():
        return f"There is no file or folder {first}; {advice}"
    return f"No images are given, and {first} holds none; {advice}"


def names_images(word: str) -> bool:
    """Whether an argument names images: `-`, a file, or a folder without a run."""
    from t2t.data.image_files import (
        is_image_name,
        is_unread_name,
        is_url,
        permitted,
        walk,
    )

    path = Path(word).expanduser()
    if path.is_dir():
        if is_run(word):
            return False
        with permitted():
            return next(walk(str(path)), None) is not None
    is_remote = is_url(word) or word.startswith("hf-hub:")
    is_image = is_image_name(word) or is_unread_name(word)
    return word == "-" or (is_image and not is_remote)


def is_run(word: str) -> bool:
    """Whether an argument is a run folder: one that holds a recipe or a model.

    False for a folder without read permission.
    """
    path = os.path.expanduser(word)
    files = os.listdir(path) if os.path.isdir(path) and os.access(path, os.R_OK) else []
    return any(f == "recipe.json" or f.endswith(".safetensors") for f in files)
