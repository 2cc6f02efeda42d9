"""Pre-trained weights of timm's models, by the model's name or on its hub."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import Tensor, nn

from t2t.errors import UserError, close_matches, first_line
from t2t.models.builtin import NAME as BUILTIN
from t2t.models.checkpoint_io.checkpoints import Checkpoint
from t2t.models.checkpoint_io.description import Description
from t2t.models.checkpoint_io.reachability import why_unreachable
from t2t.models.checkpoint_io.resolve import hub_config, no_file
from t2t.models.zoo import CONFIGS, ZOO

HUB_FILES = ("model.safetensors", "pytorch_model.bin")


def read_timm(name: str) -> Checkpoint:
    """The pre-trained weights of a timm model, downloaded once.

    A name may have a tag, such as vit_small_patch16_224.augreg_in1k.
    """
    import timm  # slow to import, and needed for timm's names only

    if name in CONFIGS:
        raise UserError(
            f"{name} is a model of t2t, and no weights of it are hosted: give a file, "
            "a run folder, builtin, or the name of a timm model."
        )
    timm_name = str(ZOO[name].build) if name in ZOO else name
    architecture = timm_name.partition(".")[0]
    if not timm.is_model(architecture):
        hosted = {each.partition(".")[0] for each in timm.list_pretrained()}
        found = close_matches(name, {BUILTIN, *hosted})
        hint = f" Did you mean {' or '.join(found)}?" if found else ""
        raise UserError(no_file(name) + hint)
    try:
        settings = timm.get_pretrained_cfg(timm_name)
    except RuntimeError:  # the tag is unknown
        settings = None
    if settings is None or not settings.has_weights:
        tags = ", ".join(timm.list_pretrained(f"{architecture}.*")[:5])
        has = f"timm has {tags}" if tags else "timm has none of this model"
        raise UserError(
            f"There are no pre-trained weights {name}: {has}; give a file of weights, "
            "or another name."
        )
    network = build_pretrained(timm_name, settings)
    network_settings = settings_of(architecture, network)
    used: Any = network.pretrained_cfg
    return Checkpoint(
        origin=name,
        tensors=dict(network.state_dict()),
        weights="weights",
        description=Description(
            name=architecture,
            settings=network_settings,
            extra=preprocessing(used),
        ),
        hint=architecture,
    )


def build_pretrained(name: str, settings: Any) -> nn.Module:
    """A timm model with its weights, from the cache if they are there."""
    import timm

    cached = cached_file(settings)
    address = settings.url or ""
    if cached is None:
        if settings.hf_hub_id:
            from huggingface_hub import constants

            address = constants.ENDPOINT
        if reason := why_unreachable(address):
            raise UserError(
                f"The pre-trained weights of {name} could not be downloaded "
                f"({reason}): check the network, or give a local file."
            )
    overlay = {"file": cached, "custom_load": settings.custom_load} if cached else None
    try:
        return timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay)
    # Servers, caches and damaged files can raise any of these.
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(
            f"The pre-trained weights of {name} could not be loaded "
            f"({first_line(error)}); try again, or give a local file."
        ) from error


def cached_file(settings: Any) -> str | None:
    """The downloaded file of a timm model's weights, if it was downloaded before."""
    if settings.hf_hub_id:
        from huggingface_hub import try_to_load_from_cache

        repository, _, revision = settings.hf_hub_id.partition("@")
        names = (settings.hf_hub_filename,) if settings.hf_hub_filename else HUB_FILES
        for name in names:
            found = try_to_load_from_cache(repository, name, revision=revision or None)
            if isinstance(found, str):
                return found
        return None
    name = Path(urlsplit(settings.url or "").path).name
    file = Path(torch.hub.get_dir()) / "checkpoints" / name
    return str(file) if name and file.is_file() else None


def description_on_hub(
    origin: str, file: Path, tensors: Mapping[str, Tensor]
) -> Description | None:
    """The description of a timm model on the hub, by its `config.json`."""
    config = hub_config(origin.removeprefix("hf-hub:"), file)
    architecture = config.get("architecture")
    if not isinstance(architecture, str):
        return None
    import timm

    if not timm.is_model(architecture):
        return None
    known = config.get("pretrained_cfg")
    known = known if isinstance(known, dict) else {}
    classifier = known.get("classifier")
    head = classifier if isinstance(classifier, str) else (classifier or ("",))[0]
    weight = tensors.get(f"{head}.weight")
    num_classes = config.get("num_classes", 1000) if weight is None else len(weight)
    names: Any = config.get("label_names")
    has_names = isinstance(names, list) and len(names) == num_classes
    return Description(
        name=architecture,
        settings={"name": architecture, "num_classes": num_classes},
        class_names=tuple(map(str, names)) if has_names else (),
        extra=preprocessing(known),
    )


def settings_of(architecture: str, network: nn.Module) -> dict[str, Any]:
    """The arguments of `create_model` that build a timm model again."""
    from t2t.models.create import timm_input

    in_channels, size = timm_input(network)
    settings: dict[str, Any] = {
        "name": architecture,
        "num_classes": network.num_classes,
        "in_channels": in_channels,
    }
    if size is not None:
        settings["image_size"] = tuple(size)
    return settings


def preprocessing(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The preprocessing that timm's settings state, as our files have it."""
    found: dict[str, Any] = {}
    if settings.get("input_size"):
        channels, height, width = settings["input_size"]
        found |= {"channels": channels, "image_size": [height, width]}
    for key in ("mean", "std"):
        if settings.get(key):
            found[key] = [float(value) for value in settings[key]]
    if settings.get("crop_pct"):
        found["crop_fraction"] = float(settings["crop_pct"])
    return found
