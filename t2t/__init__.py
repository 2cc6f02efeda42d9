"""Train vision transformers from scratch on the images you have."""

# ruff: noqa: E402
from t2t.sigint import exit_quietly_on_sigint

exit_quietly_on_sigint()

import fnmatch
import importlib
from typing import TYPE_CHECKING, Any

from t2t.errors import UserError
from t2t.timm_hook import register_with_timm

if TYPE_CHECKING:
    from t2t.models.config import ModelConfig
    from t2t.models.create import create_model
    from t2t.models.weights import load, save
    from t2t.recipes import find_recipe
    from t2t.training.loop import train

__version__ = "0.1.0"

__all__ = [
    "ModelConfig",
    "UserError",
    "create_model",
    "find_recipe",
    "list_models",
    "load",
    "save",
    "train",
]

# PyTorch takes seconds to import, so what needs it is imported when first used.
LAZY = {
    "ModelConfig": "t2t.models.config",
    "create_model": "t2t.models.create",
    "find_recipe": "t2t.recipes",
    "load": "t2t.models.weights",
    "save": "t2t.models.weights",
    "train": "t2t.training.loop",
}


def list_models(pattern: str = "*") -> list[str]:
    """The names of our models that fit a pattern like `t2t_vit_*`."""
    from t2t.models.zoo import ZOO

    return fnmatch.filter(ZOO, pattern)


def __getattr__(name: str) -> Any:
    if name not in LAZY:
        raise AttributeError(f"module 't2t' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(LAZY[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *LAZY})


register_with_timm()
