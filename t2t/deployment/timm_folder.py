"""A folder that timm and the Hugging Face hub load: config, weights and model card."""

import json
from pathlib import Path
from typing import Any

from t2t.deployment.check_images import CheckImages
from t2t.deployment.parity import Parity, check_parity
from t2t.deployment.weights_file import logits_of
from t2t.errors import UserError, first_line
from t2t.models.checkpoint_io.resolve import CONFIG_NAME, FILE_NAME
from t2t.models.pretrained import nearest_model
from t2t.models.trained import TrainedModel
from t2t.models.vit import VisionTransformer
from t2t.models.zoo import CONFIGS

CARD_NAME = "README.md"
FILES = (CONFIG_NAME, FILE_NAME, CARD_NAME)
"""All that is in the folder."""


def write_config(trained: TrainedModel, folder: Path, license_name: str) -> None:
    """Writes the `config.json` from which timm builds the model."""
    import timm  # noqa: F401  # slow; and it registers our models as it is imported

    from t2t.models.timm_support.entry_points import data_config

    network: Any = trained.model
    if isinstance(network, VisionTransformer):
        architecture, model_args = nearest_model(trained.name, network.config)
        known = data_config(CONFIGS[architecture])
        classifier = "head"
        if network.config.distilled:
            classifier = ["head", "distillation_head"]  # type: ignore[assignment]
        # timm's names for what is not of the architecture.
        model_args |= {"img_size": trained.image_size, "in_chans": trained.channels}
    else:
        known = {
            key: value
            for key, value in network.pretrained_cfg.items()
            if key in ("first_conv", "classifier", "fixed_input_size", "pool_size")
        }
        architecture = str(network.pretrained_cfg.get("architecture", trained.name))
        classifier = known.get("classifier", "fc")
        model_args = {"in_chans": trained.channels}
        if known.get("fixed_input_size"):
            model_args["img_size"] = trained.image_size
    config = {
        "architecture": architecture,
        "num_classes": len(trained.class_names),
        "num_features": network.num_features,
        "label_names": list(trained.class_names),
        **descriptions(trained),
        "model_args": model_args,
        "pretrained_cfg": {
            **known,
            "custom_load": False,
            "input_size": [trained.channels, *trained.image_size],
            "interpolation": "bicubic",
            "crop_pct": trained.crop_fraction,
            "crop_mode": "center",
            "mean": list(trained.mean),
            "std": list(trained.std),
            "num_classes": len(trained.class_names),
            "classifier": classifier,
            "license": license_name,
        },
    }
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    (folder / CONFIG_NAME).write_text(text, encoding="utf-8")


def descriptions(trained: TrainedModel) -> dict[str, dict[str, str]]:
    """The words of each class name, if they are others."""
    words = trained.readable_names
    if words == trained.class_names:
        return {}
    named = dict(zip(trained.class_names, words, strict=True))
    return {"label_descriptions": named}


def check_slots(trained: TrainedModel) -> None:
    """Raises an error for a model with a user's own parts, which timm cannot build."""
    from t2t.models.blocks import MIXERS, MLPS
    from t2t.models.positions import POSITIONS
    from t2t.models.tokenizers import TOKENIZERS

    if not isinstance(trained.model, VisionTransformer):
        return
    config = trained.model.config
    slots: dict[str, Any] = {
        "tokenizer": TOKENIZERS,
        "positions": POSITIONS,
        "mixer": MIXERS,
        "mlp": MLPS,
    }
    for slot, registry in slots.items():
        name = getattr(config, slot)
        if name not in registry.built_in:
            raise UserError(
                f"{trained.path} has the {slot} {name!r} of your own file, which timm "
                "cannot build: export it to onnx or torch-export."
            )


def compare_with_timm(
    trained: TrainedModel, folder: Path, images: CheckImages
) -> Parity:
    """Lets timm load the folder, and compares its logits."""
    import timm

    try:
        again = timm.create_model(f"local-dir:{folder}", pretrained=True)
    # timm and its checkpoints raise errors of many kinds.
    except Exception as error:
        raise UserError(
            f"timm cannot load {trained.name} from a folder ({first_line(error)})."
        ) from error
    graph, run = logits_of(trained, again)
    return check_parity(f"{trained.name} in timm", run, graph.outputs_for, images)
