"""Groups of parameters with their own learning rate and weight decay."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from t2t.errors import UserError
from t2t.models.vit import VisionTransformer
from t2t.tasks.base import heads_of
from t2t.training.recipe import OptimizerConfig

Groups = list[dict[str, Any]]


def groups_of_own_modules(
    model: nn.Module, modules: Iterable[nn.Module], settings: OptimizerConfig, lr: float
) -> Groups:
    """Groups of a task's own modules: matrices have weight decay, the rest none."""
    groups: dict[float, list[Tensor]] = {}
    seen = {*model.parameters()}  # a task may name a part of the model once more
    for module in modules:
        for parameter in module.parameters():
            if parameter.requires_grad and parameter not in seen:
                seen.add(parameter)
                decay = 0.0 if parameter.ndim < 2 else settings.weight_decay
                groups.setdefault(decay, []).append(parameter)
    return [
        {"params": parameters, "lr": lr, "peak": lr, "weight_decay": decay}
        for decay, parameters in groups.items()
    ]


def hidden_weights(model: nn.Module, *, first_too: bool) -> set[str]:
    """Names of matrices and filters between the first layer and the head."""
    layers = layers_of(model, "optimizer.name=muon", "use optimizer.name=adamw")
    heads = {id(parameter) for parameter in head_parameters(model)}
    return {
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
        and is_matrix(model, name)
        and id(parameter) not in heads
        and (first_too or layers[name] > 0)
    }


def is_matrix(model: nn.Module, name: str) -> bool:
    """Whether a parameter mixes all input channels: a linear or a full convolution."""
    owner, _, own_name = name.rpartition(".")
    layer = model.get_submodule(owner)
    if own_name != "weight" or not isinstance(layer, nn.Linear | nn.Conv2d):
        return False
    return not isinstance(layer, nn.Conv2d) or layer.groups == 1


def parameter_groups(
    model: nn.Module, settings: OptimizerConfig, lr: float, only: set[str] | None = None
) -> Groups:
    """Parameters grouped by learning rate and decay; the schedule scales `peak`."""
    exempt: set[str] = getattr(model, "no_weight_decay", set)()
    scales = layer_scales(model, settings.layer_decay)
    heads = {id(parameter) for parameter in head_parameters(model)}
    groups: dict[tuple[float, float], list[Tensor]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad or (only is not None and name not in only):
            continue
        is_exempt = parameter.ndim < 2 or name in exempt
        decay = 0.0 if is_exempt else settings.weight_decay
        share = scales.get(name, 1.0)
        if settings.body_lr is not None and id(parameter) not in heads:
            share *= settings.body_lr / settings.lr
        groups.setdefault((lr * share, decay), []).append(parameter)
    return [
        {"params": parameters, "lr": peak, "peak": peak, "weight_decay": decay}
        for (peak, decay), parameters in groups.items()
    ]


def head_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters of the classifier."""
    return [parameter for head in heads_of(model) for parameter in head.parameters()]


def layer_scales(model: nn.Module, layer_decay: float) -> dict[str, float]:
    """Factors of the learning rate by parameter name, smaller for lower layers."""
    if layer_decay == 1:
        return {}
    layers = layers_of(model, "optimizer.layer_decay", "set it to 1")
    top = max(layers.values())
    return {name: layer_decay ** (top - layer) for name, layer in layers.items()}


def layers_of(model: nn.Module, needed_by: str, otherwise: str) -> dict[str, int]:
    """The layer of every parameter; 0 is the one that sees the image."""
    matcher = getattr(model, "group_matcher", None)
    if matcher is None:
        raise UserError(
            f"{needed_by} needs a model that names its layers, which "
            f"{type(model).__name__} does not; {otherwise}."
        )
    if isinstance(model, VisionTransformer):
        return own_layers(model)
    import timm.models  # slow to import

    found: dict[str, int] = timm.models.group_parameters(model, matcher(), reverse=True)
    return found


def own_layers(model: VisionTransformer) -> dict[str, int]:
    """The layers by the model's `group_matcher`, without importing timm."""
    num_blocks = len(model.encoder.blocks)

    def layer(name: str) -> int:
        """The stem, each block, the last of them with the norm, then the heads."""
        if name.startswith(("prefix", "tokenizer", "encoder.positions")):
            return 0
        if name.startswith(("encoder.blocks.", "encoder.downsamples.")):
            return 1 + int(name.split(".")[2])
        return num_blocks + (not name.startswith("norm."))

    return {name: layer(name) for name, _ in model.named_parameters()}
