"""Our models under timm's own `create_model`, `list_models` and data config."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import timm
from timm.models import (
    build_model_with_cfg,
    generate_default_cfgs,
    register_model,
    resolve_pretrained_cfg,
)

from t2t.errors import UserError
from t2t.models.config import ModelConfig
from t2t.models.zoo import CONFIGS, ZOO

if TYPE_CHECKING:
    from torch import nn

    from t2t.models.vit import VisionTransformer

# timm looks these up in the module that registers.
default_cfgs: dict[str, Any] = {}


def register() -> None:
    """Adds our models to timm's registry, except names that timm has."""
    from t2t.models.timm_support.tracing import register_leaves

    register_leaves()
    for name, config in CONFIGS.items():
        if not timm.is_model(name):
            default_cfgs.update(generate_default_cfgs({name: data_config(config)}))
            register_model(entry_point(name))


def data_config(config: ModelConfig) -> dict[str, Any]:
    """timm's data config; mean and std are ImageNet's."""
    height, width = config.image_size
    return {
        "input_size": (config.in_channels, height, width),
        "num_classes": config.num_classes,
        "interpolation": "bicubic",
        # As published for ImageNet; small images are used whole.
        "crop_pct": 0.9 if min(height, width) >= 128 else 1.0,
        "first_conv": first_layers(config.tokenizer, config.stem),
        "classifier": ("head", "distillation_head") if config.distilled else "head",
    }


def first_layers(tokenizer: str, stem: str) -> tuple[str, ...]:
    """The layers that depend on the number of channels: timm's `first_conv`."""
    if tokenizer == "hybrid":
        first = timm.get_pretrained_cfg_value(stem, "first_conv")
        return (f"tokenizer.stem.{first}",)
    if tokenizer in ("t2t", "t2t_performer"):
        return ("tokenizer.steps.0.norm1", "tokenizer.steps.0.qkv")
    convolutions = {"patch": "project", "t2t_conv": "convolutions.0"}
    return (f"tokenizer.{convolutions.get(tokenizer, 'project')}",)


def entry_point(name: str) -> Callable[..., "nn.Module"]:
    """The function that timm calls to build a model, under the model's name."""

    def build(pretrained: bool = False, **settings: Any) -> "nn.Module":
        source = {
            key: settings.pop(key, None)
            for key in ("pretrained_cfg", "pretrained_cfg_overlay")
        }
        if pretrained:
            refuse_without_weights(name, **source)
        source["pretrained_cfg_overlay"] = overlay = with_input_size(
            name, source["pretrained_cfg_overlay"], settings
        )
        first = overlay.pop("first_conv")
        # timm would adapt these as convolutions; `adapt_to_model` adapts them instead.
        overlay["first_conv"] = None
        model = build_model_with_cfg(
            lambda **model_args: build_for_timm(name, **model_args),
            name,
            pretrained,
            feature_cfg={"out_indices": 3, "feature_cls": "getter"},
            **source,
            **settings,
        )
        model.pretrained_cfg["first_conv"] = first
        return model

    build.__name__ = build.__qualname__ = name
    build.__doc__ = ZOO[name].about
    return build


def with_input_size(
    name: str, overlay: dict[str, Any] | None, settings: dict[str, Any]
) -> dict[str, Any]:
    """The overlay with the requested input size and its first layers."""
    from t2t.models.create import as_size

    config = CONFIGS[name]
    size = as_size(settings.get("img_size", config.image_size))
    channels = settings.get("in_chans", config.in_channels)
    first = first_layers(
        settings.get("tokenizer", config.tokenizer), settings.get("stem", config.stem)
    )
    return {"input_size": (channels, *size), "first_conv": first, **(overlay or {})}


def build_for_timm(
    name: str,
    *,
    img_size: int | tuple[int, int] | None = None,
    in_chans: int = 3,
    drop_path_rate: float = 0.0,
    drop_rate: float = 0.0,
    pos_drop_rate: float = 0.0,
    proj_drop_rate: float = 0.0,
    attn_drop_rate: float = 0.0,
    global_pool: str | None = None,
    **model_args: Any,
) -> "VisionTransformer":
    """One of our models, built with timm's names of options."""
    from t2t.models.create import model_config
    from t2t.models.timm_support.checkpoints import adapt_to_model
    from t2t.models.timm_support.dropout import set_dropout
    from t2t.models.timm_support.interface import POOL_OF_TIMM
    from t2t.models.vit import VisionTransformer

    if global_pool is not None:
        model_args["pool"] = POOL_OF_TIMM.get(global_pool, global_pool)
    config = model_config(
        name,
        image_size=img_size,
        in_channels=in_chans,
        drop_path=drop_path_rate,
        **model_args,
    )
    model = VisionTransformer(config)
    if drop_rate:
        model.drop_rate = drop_rate
        model.drop_before_heads()
    set_dropout(
        model.encoder,
        pos_drop_rate=pos_drop_rate,
        proj_drop_rate=proj_drop_rate,
        attn_drop_rate=attn_drop_rate,
    )
    model.register_load_state_dict_pre_hook(adapt_to_model)
    return model


def refuse_without_weights(name: str, **source: Any) -> None:
    """Raises an error that says how to load a file, if no weights are hosted."""
    config = resolve_pretrained_cfg(name, **source)
    if not (config.has_weights or config.state_dict):
        raise UserError(
            f"There are no hosted weights of {name} for pretrained=True; download a "
            "published file and give checkpoint_path=FILE, or use t2t.load(FILE)."
        )


register()
