"""timm's CNNs for images of 32 pixels: their first strides are removed.

They are made for 224 px and would reduce 32 px to one position before most layers.
Nothing else is changed: blocks, widths and names of parameters are timm's.
"""

from collections.abc import Callable
from typing import Any

import timm
import torch
from timm.models import (
    generate_default_cfgs,
    register_model,
    resolve_pretrained_cfg,
)
from torch import nn

from t2t.errors import UserError

# timm looks these up in the module that registers.
default_cfgs: dict[str, Any] = {}


def resnet(name: str, **settings: Any) -> nn.Module:
    """A ResNet that starts with a 3×3 convolution, without stride and pooling."""
    network = timm.create_model(name, **settings)
    first = network.conv1
    network.conv1 = nn.Conv2d(
        first.in_channels, first.out_channels, 3, padding=1, bias=False
    )
    # As timm initialises its convolutions.
    nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
    network.maxpool = nn.Identity()
    return network


def mobilenet(name: str, **settings: Any) -> nn.Module:
    """A MobileNetV2 whose stem and first wider stage keep the image's size."""
    network = timm.create_model(name, **settings)
    network.conv_stem.stride = (1, 1)
    network.blocks[1][0].conv_dw.stride = (1, 1)
    return network


def divide_reductions(network: nn.Module) -> None:
    """Corrects the reductions in `feature_info`: two strides of 2 were removed."""
    known: Any = network.feature_info
    for stage in getattr(known, "info", known):
        stage["reduction"] = max(1, stage["reduction"] // 4)


SMALL_CNNS: dict[str, tuple[Callable[..., nn.Module], str]] = {
    "resnet18_32": (resnet, "resnet18"),
    "resnet50_32": (resnet, "resnet50"),
    "mobilenetv2_32": (mobilenet, "mobilenetv2_100"),
}
"""The function that builds each, and the timm model it starts from."""


def register() -> None:
    """Adds these models to timm's registry."""
    for name, (_, original) in SMALL_CNNS.items():
        if not timm.is_model(name):
            about = DATA | {
                layer: timm.get_pretrained_cfg_value(original, layer)
                for layer in ("classifier", "first_conv")
            }
            default_cfgs.update(generate_default_cfgs({name: about}))
            register_model(entry_point(name))


DATA = {
    "input_size": (3, 32, 32),
    "pool_size": (4, 4),
    "num_classes": 10,
    "crop_pct": 1.0,
}


def entry_point(name: str) -> Callable[..., nn.Module]:
    """The function that timm calls to build one, under its name."""
    build, original = SMALL_CNNS[name]

    def entry(
        pretrained: bool = False,
        pretrained_cfg: Any = None,
        pretrained_cfg_overlay: Any = None,
        **settings: Any,
    ) -> nn.Module:
        about = resolve_pretrained_cfg(name, pretrained_cfg, pretrained_cfg_overlay)
        if pretrained and not about.has_weights:
            raise UserError(
                f"There are no hosted weights of {name} for pretrained=True; "
                "`t2t study networks` trains it."
            )
        settings = {"num_classes": about.num_classes, **settings}
        settings.pop("cache_dir", None)
        network: Any = build(original, **settings)
        network.pretrained_cfg = network.default_cfg = about.to_dict()
        divide_reductions(network)
        if pretrained:  # a folder, or a repository of the hub
            channels = settings.get("in_chans", 3)
            timm.models.load_pretrained(
                network, network.pretrained_cfg, network.num_classes, channels
            )
        # Tensor cores read the channels of a position together.
        return network.to(memory_format=torch.channels_last)

    entry.__name__ = entry.__qualname__ = name
    entry.__doc__ = f"{original} for images of 32 pixels."
    return entry


register()
