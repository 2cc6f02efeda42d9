"""Models by name, from the zoo or from timm."""

from dataclasses import fields, replace
from typing import Any, get_type_hints

from torch import nn

from t2t.config import convert
from t2t.errors import UserError, require, suggest
from t2t.models.config import ModelConfig, Size, check_image_size
from t2t.models.vit import VisionTransformer
from t2t.models.zoo import CONFIGS, ZOO

NAMES_ELSEWHERE = {
    "img_size": "image_size",
    "in_chans": "in_channels",
    "drop_path_rate": "drop_path",
    "embed_dim": "dim",
    "global_pool": "pool",
    "pos_embed": "positions",
}


def create_model(
    name: str,
    *,
    num_classes: int | None = None,
    image_size: int | Size | None = None,
    in_channels: int = 3,
    drop_path: float = 0.0,
    **model_args: Any,
) -> nn.Module:
    """An untrained model by name; `model_args` set other fields of its config.

    A name that is not in the zoo is timm's.
    """
    if not isinstance(name, str):
        raise UserError(f"A model's name is a string, not {name!r}. See `t2t models`.")
    settings: dict[str, Any] = {
        "num_classes": num_classes,
        "image_size": image_size,
        "in_channels": in_channels,
        "drop_path": drop_path,
    }
    if name in CONFIGS:
        return VisionTransformer(model_config(name, **settings, **model_args))
    return create_timm_model(name, **settings, **model_args)


def create_timm_model(
    name: str,
    *,
    num_classes: int | None,
    image_size: int | Size | None,
    in_channels: int,
    drop_path: float,
    **model_args: Any,
) -> nn.Module:
    """A timm model; it takes no `model_args`."""
    import timm  # slow to import, and not needed for our models

    timm_name = name_in_timm(name)
    if model_args:
        raise UserError(
            f"{name} is built by timm and takes no {', '.join(sorted(model_args))}; "
            "only models that are not timm's have slots; see `t2t models`."
        )
    drop_path = convert(as_plain(drop_path), float, "drop_path")
    require("drop_path", drop_path, 0, below=1)
    in_channels = convert(as_plain(in_channels), int, "in_channels")
    require("in_channels", in_channels, 1)
    settings: dict[str, Any] = {"drop_path_rate": drop_path} if drop_path else {}
    own = {}
    if num_classes is not None:
        own["num_classes"] = convert(as_plain(num_classes), int, "num_classes")
        require("num_classes", own["num_classes"], 0)
    image_size = None if image_size is None else as_size(image_size)
    if image_size is not None and timm.get_pretrained_cfg_value(
        timm_name, "fixed_input_size"
    ):
        settings["img_size"] = image_size
    try:
        return timm.create_model(timm_name, in_chans=in_channels, **own, **settings)
    except (TypeError, RuntimeError, ValueError, AssertionError) as error:
        if not settings:
            raise
        given = [f"{NAMES_ELSEWHERE[key]}={value}" for key, value in settings.items()]
        raise UserError(
            f"timm cannot build {name} with {', '.join(given)} ({error}); leave that "
            "out, or choose another network."
        ) from error


def timm_input(network: nn.Module) -> tuple[int, Size | None]:
    """The input channels of a timm model, and its image size if that is fixed."""
    first = next((each for each in network.parameters() if each.ndim == 4), None)
    size = getattr(getattr(network, "patch_embed", None), "img_size", None)
    return 3 if first is None else first.shape[1], size


def name_in_timm(name: str) -> str:
    """timm's name of a model; raises an error if timm does not have it."""
    import timm

    timm_name = str(ZOO[name].build) if name in ZOO else name
    if not timm.is_model(timm_name):
        raise UserError(f"There is no model {name!r}.{suggest_model(name)}")
    return timm_name


def model_config(
    name: str,
    *,
    num_classes: int | None = None,
    image_size: int | Size | None = None,
    **model_args: Any,
) -> ModelConfig:
    """The config of one of our models, with `model_args` set."""
    if name not in CONFIGS:
        raise UserError(f"t2t has no model {name!r}.{suggest_model(name)}")
    check_model_args(name, model_args)
    if num_classes is not None:
        model_args["num_classes"] = num_classes
    if image_size is not None:
        model_args["image_size"] = as_size(image_size)
    hints = get_type_hints(ModelConfig)
    return replace(
        CONFIGS[name],
        **{
            key: convert(as_plain(value), hints[key], key)
            for key, value in model_args.items()
        },
    )


def as_plain(value: Any) -> Any:
    """A NumPy or torch scalar as a Python number; other values unchanged."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


def check_model_args(name: str, model_args: dict[str, Any]) -> None:
    """Raises an error for an option that the config does not have."""
    allowed = {field.name for field in fields(ModelConfig)}
    for option in model_args.keys() - allowed:
        meant = NAMES_ELSEWHERE.get(option)
        hint = f" Here it is called {meant}." if meant else suggest(option, allowed)
        raise UserError(f"{name} has no option {option!r}.{hint}")


def as_size(image_size: int | Size) -> Size:
    """Height and width from one number or two."""
    plain = as_plain(image_size)
    if isinstance(plain, list | tuple):
        plain = tuple(map(as_plain, plain))
    size: Size = convert(plain, Size, "image_size")
    check_image_size(size)
    return size


def suggest_model(name: str) -> str:
    """A closing sentence with similar names of models."""
    import timm

    return suggest(name, {*ZOO, *timm.list_models()}) or " See `t2t models`."
