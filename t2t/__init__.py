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
    from t2t.data.augment.config import Augmentation
    from t2t.data.augment.operations import register_augmentation
    from t2t.data.augment.pipeline import augment_images
    from t2t.data.rng import CounterRng
    from t2t.data.sources import Source, register_source
    from t2t.deployment.export import export
    from t2t.error_analysis.evaluate import evaluate
    from t2t.models.blocks import register_mixer, register_mlp
    from t2t.models.config import ModelConfig
    from t2t.models.create import create_model
    from t2t.models.positions import Positions, register_positions
    from t2t.models.tokenizers import Tokenizer, register_tokenizer
    from t2t.models.weights import load, save
    from t2t.probing.features import features
    from t2t.probing.neighbors import neighbors
    from t2t.probing.probe import probe
    from t2t.recipes import find_recipe
    from t2t.recipes.train import train
    from t2t.serving.onnx_predictor import load_onnx
    from t2t.tasks import Metric, Task, TaskContext, register_task
    from t2t.tasks.classify import Classify
    from t2t.training.optim import register_optimizer
    from t2t.training.recipe import (
        EMA,
        CropConfig,
        OptimizerConfig,
        Recipe,
        Schedule,
        TokenDropping,
    )
    from t2t.user_code import load_code
    from t2t.visualize.look import look

__version__ = "0.1.0"

__all__ = [
    "EMA",
    "Augmentation",
    "Classify",
    "CounterRng",
    "CropConfig",
    "Metric",
    "ModelConfig",
    "OptimizerConfig",
    "Positions",
    "Recipe",
    "Schedule",
    "Source",
    "Task",
    "TaskContext",
    "TokenDropping",
    "Tokenizer",
    "UserError",
    "augment_images",
    "create_model",
    "evaluate",
    "export",
    "features",
    "find_recipe",
    "list_models",
    "load",
    "load_code",
    "load_onnx",
    "look",
    "neighbors",
    "probe",
    "register_augmentation",
    "register_mixer",
    "register_mlp",
    "register_optimizer",
    "register_positions",
    "register_source",
    "register_task",
    "register_tokenizer",
    "save",
    "train",
]

# PyTorch takes seconds to import, so what needs it is imported when first used.
LAZY = {
    "Augmentation": "t2t.data.augment.config",
    "Classify": "t2t.tasks.classify",
    "CounterRng": "t2t.data.rng",
    "CropConfig": "t2t.training.recipe",
    "EMA": "t2t.training.recipe",
    "Metric": "t2t.tasks",
    "ModelConfig": "t2t.models.config",
    "OptimizerConfig": "t2t.training.recipe",
    "Positions": "t2t.models.positions",
    "Recipe": "t2t.training.recipe",
    "Schedule": "t2t.training.recipe",
    "Source": "t2t.data.sources",
    "Task": "t2t.tasks",
    "TaskContext": "t2t.tasks",
    "TokenDropping": "t2t.training.recipe",
    "Tokenizer": "t2t.models.tokenizers",
    "augment_images": "t2t.data.augment.pipeline",
    "create_model": "t2t.models.create",
    "evaluate": "t2t.error_analysis.evaluate",
    "export": "t2t.deployment.export",
    "features": "t2t.probing.features",
    "find_recipe": "t2t.recipes",
    "load": "t2t.models.weights",
    "load_onnx": "t2t.serving.onnx_predictor",
    "load_code": "t2t.user_code",
    "look": "t2t.visualize.look",
    "neighbors": "t2t.probing.neighbors",
    "probe": "t2t.probing.probe",
    "register_augmentation": "t2t.data.augment.operations",
    "register_mixer": "t2t.models.blocks",
    "register_mlp": "t2t.models.blocks",
    "register_optimizer": "t2t.training.optim",
    "register_positions": "t2t.models.positions",
    "register_source": "t2t.data.sources",
    "register_task": "t2t.tasks",
    "register_tokenizer": "t2t.models.tokenizers",
    "save": "t2t.models.weights",
    "train": "t2t.recipes.train",
}


def list_models(pattern: str = "*") -> list[str]:
    """The names of models that match a pattern such as `t2t_vit_*`."""
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
