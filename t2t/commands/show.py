"""`t2t show`: show the layers and the cost of a model."""

from collections.abc import Iterable
from typing import Annotated, Any

from tyro.conf import Positional, UseAppendAction

from t2t.commands.options import (
    CodeOption,
    ImageSizeOption,
    JsonFlag,
    at_least,
    option,
    parse_size,
    run_code,
)
from t2t.config import check_contradictions


def show(
    name: Annotated[
        Positional[str],
        option("A name from `t2t models`, a timm model, or a run.", metavar="NAME"),
    ],
    *,
    image_size: ImageSizeOption = None,
    num_classes: Annotated[
        int | None, option("Number of classes.", "(default: the model's)", "N")
    ] = None,
    in_channels: Annotated[int, option("Channels per image.", "(default: 3)", "N")] = 3,
    set: Annotated[
        UseAppendAction[tuple[str, ...]],
        option("Set any model argument.", "(repeatable)", "NAME=VALUE"),
    ] = (),
    depth: Annotated[
        int | None,
        option("Depth of the module tree.", "(default: 3, or 2 for timm's)", "N"),
    ] = None,
    code: CodeOption = (),
    json: JsonFlag = False,
) -> None:
    """Show a model's modules, tokens, parameters and MACs.

    Examples:
      t2t show t2t_vit_14
      t2t show t2t_vit_14 --image-size 192x256 --num-classes 10
      t2t show t2t_vit_14 --set positions=relative --set mixer=ghost
      t2t show resnet50 --depth 1
      t2t show runs/own
    """
    options = {"image_size": image_size, "num_classes": num_classes}
    options["in_channels"] = in_channels if in_channels != 3 else None
    check_contradictions(options, set)
    model_args = parse_model_args(set)
    if image_size is not None:
        model_args["image_size"] = parse_size(image_size)
    if num_classes is not None:
        model_args["num_classes"] = at_least(0, "--num-classes", num_classes)
    if in_channels != 3:
        model_args["in_channels"] = at_least(1, "--in-channels", in_channels)

    run_code(code)

    from t2t.analysis.summary import summarise
    from t2t.screen import print_json, print_page

    at_least(0, "--depth", depth)
    summary = summarise(name, model_args)
    if json:
        print_json(summary.as_json())
    else:
        print_page(lambda width: summary.render(depth))


def parse_model_args(settings: Iterable[str]) -> dict[str, Any]:
    """Model arguments from NAME=VALUE, each with its type."""
    from t2t.config import assignment, value_of
    from t2t.models.config import ModelConfig

    model_args: dict[str, Any] = {}
    for setting in settings:
        name, text = assignment(setting)
        # An unknown name raises an error where the model is built.
        model_args[name] = value_of(ModelConfig, name, text)
    return model_args
