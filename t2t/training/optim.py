"""Optimizers by name, for the parameter groups of a model and a task."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from inspect import signature, unwrap
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from t2t.errors import UserError, first_line, suggest
from t2t.registry import Registry
from t2t.training.muon import Muon
from t2t.training.parameter_groups import (
    Groups,
    groups_of_own_modules,
    hidden_weights,
    parameter_groups,
)
from t2t.training.recipe import OptimizerConfig, Recipe
from t2t.training.torch_optimizers import SGD, AdamW

Builder = Callable[[Groups, OptimizerConfig], Optimizer]
Added = TypeVar("Added", bound=Builder)

UNSUPPORTED = {
    "adahessian": "it needs second derivatives",
    **dict.fromkeys(("kron", "kronc", "kronw"), "its state cannot be saved"),
}
"""Why some of timm's optimizers are refused."""


def build_optimizers(
    model: nn.Module, recipe: Recipe, others: Iterable[nn.Module] = ()
) -> list[Optimizer]:
    """The optimizers of a recipe, for a model and a task's other modules."""
    settings = recipe.optimizer
    lr = settings.scaled(settings.lr, recipe.batch_size)
    if settings.name == "muon":
        rest_lr = settings.scaled(settings.as_adamw().lr, recipe.batch_size)
        own = groups_of_own_modules(model, others, settings, rest_lr)
        return muon_and_adamw(model, recipe, own)
    groups = parameter_groups(model, settings, lr)
    groups += groups_of_own_modules(model, others, settings, lr)
    if settings.name in OPTIMIZERS:
        return [registered_optimizer(settings.name, groups, settings)]
    return [timm_optimizer(groups, settings, lr)]


def registered_optimizer(
    name: str, groups: Groups, settings: OptimizerConfig
) -> Optimizer:
    """An optimizer that a user registered, or one of OPTIMIZERS."""
    wanted = {parameter for group in groups for parameter in group["params"]}
    built = OPTIMIZERS.choose(name)
    if isinstance(built, type) and [*signature(built).parameters][1:2] == ["lr"]:
        raise UserError(
            f"optimizer.name={name!r} is the class {built.__name__}, which takes lr "
            "second and is given the recipe's OptimizerConfig; register a function of "
            "(groups, config) that returns the optimizer."
        )
    optimizer = OPTIMIZERS.build(name, Optimizer, groups, settings)
    trained = {each for group in optimizer.param_groups for each in group["params"]}
    if trained != wanted or not all("peak" in each for each in optimizer.param_groups):
        raise UserError(
            f"optimizer.name={name!r} trains {len(trained)} of {len(wanted)} weights, "
            "or has lost their settings; pass it all groups as they are given."
        )
    # Both are wrapped by torch's profiler.
    if unwrap(type(optimizer).step) is unwrap(Optimizer.step):
        raise UserError(f"optimizer.name={name!r} defines no step: add it.")
    return optimizer


def timm_optimizer(groups: Groups, settings: OptimizerConfig, lr: float) -> Optimizer:
    """An optimizer by its name in timm."""
    import timm.optim  # slow to import, and only needed for timm's names

    name, known = settings.name, timm.optim.list_optimizers()
    if name not in known:
        hint = OPTIMIZERS.provide(name)
        if name in OPTIMIZERS:
            return registered_optimizer(name, groups, settings)
        ours = ("muon", *OPTIMIZERS)
        allowed = f" Allowed: {', '.join(sorted(ours))} and those of timm."
        raise UserError(
            f"There is no optimizer {name!r}."
            f"{suggest(name, [*ours, *known]) or allowed}{hint}"
        )
    if name in UNSUPPORTED:
        raise UserError(
            f"optimizer.name={name} is not supported: {UNSUPPORTED[name]}; choose "
            "another, such as adamw."
        )
    info = timm.optim.get_optimizer_info(name)
    takes_betas = info.has_betas and info.num_betas == len(settings.betas)
    try:
        return timm.optim.create_optimizer_v2(
            groups,
            name,
            lr=lr,
            momentum=settings.momentum,
            **({"betas": settings.betas} if takes_betas else {}),
        )
    # Some need a package or a GPU that is missing.
    except (AssertionError, ImportError, RuntimeError) as error:
        raise UserError(
            f"optimizer.name={name} cannot be used here ({first_line(error)}); choose "
            "another, such as adamw."
        ) from error


def muon_and_adamw(model: nn.Module, recipe: Recipe, own: Groups) -> list[Optimizer]:
    """Muon for the hidden matrices of the model, AdamW for the rest."""
    settings = recipe.optimizer
    hidden = hidden_weights(model, first_too=settings.muon_on == "tokens_too")
    if not hidden:
        raise UserError(
            "optimizer.name=muon needs a model with layers between its first and its "
            "head; use --set optimizer.name=adamw --set "
            f"optimizer.lr={settings.as_adamw().lr:g}."
        )
    lr = settings.scaled(settings.lr, recipe.batch_size)
    rest_lr = settings.scaled(settings.as_adamw().lr, recipe.batch_size)
    muon = Muon(parameter_groups(model, settings, lr, only=hidden), lr=lr)
    others = {name for name, _ in model.named_parameters()} - hidden
    groups = parameter_groups(model, settings, rest_lr, only=others)
    return [muon, adamw(groups + own, settings)]


def are_on_cuda(groups: Groups) -> bool:
    """Whether all parameters of the groups are on a GPU."""
    return all(each.is_cuda for group in groups for each in group["params"])


def adamw(groups: Groups, settings: OptimizerConfig) -> AdamW:
    """AdamW; on a GPU it is fused, and can be captured in a CUDA graph."""
    fused = are_on_cuda(groups)
    return AdamW(groups, betas=settings.betas, fused=fused, capturable=fused)


def sgd(groups: Groups, settings: OptimizerConfig) -> SGD:
    """SGD with momentum buffers of zeros.

    Its fused kernel would leave new buffers uninitialized if the first step is skipped.
    """
    fused = are_on_cuda(groups)
    optimizer = SGD(groups, momentum=settings.momentum, fused=fused)
    if settings.momentum:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                momentum = torch.zeros_like(parameter, requires_grad=False)
                optimizer.state[parameter]["momentum_buffer"] = momentum
    return optimizer


OPTIMIZERS: Registry[Builder] = Registry("optimizer.name", {"adamw": adamw, "sgd": sgd})
"""Optimizers by name, except Muon, which needs the model, and timm's."""


def register_optimizer(name: str) -> Callable[[Added], Added]:
    """A decorator that adds an optimizer for a recipe's `optimizer.name`.

    The function takes parameter groups, which have their own `lr` and `weight_decay`,
    and the recipe's `OptimizerConfig`. It returns a `torch.optim.Optimizer`.
    """
    import timm.optim  # slow to import

    if name in ("muon", *timm.optim.list_optimizers()):
        raise UserError(
            f"optimizer.name {name!r} is the name of an optimizer of t2t or timm; "
            "choose another name."
        )
    return OPTIMIZERS.register(name)


def all_groups(optimizers: list[Optimizer]) -> Iterator[dict[str, Any]]:
    """The groups of all optimizers."""
    for optimizer in optimizers:
        yield from optimizer.param_groups


@contextmanager
def device_learning_rates(
    rates: Sequence[Tensor], found_inf: Tensor, optimizers: list[Optimizer]
) -> Iterator[None]:
    """Makes optimizers read learning rates on the device, and skip if `found_inf`."""
    groups = list(all_groups(optimizers))
    before = [group["lr"] for group in groups]
    for group, rate in zip(groups, rates, strict=True):
        group["lr"] = rate
    for optimizer in optimizers:
        # torch's fused optimizers and ours skip a step by this attribute.
        optimizer.found_inf = found_inf  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for group, rate in zip(groups, before, strict=True):
            group["lr"] = rate
        for optimizer in optimizers:
            del optimizer.found_inf  # type: ignore[attr-defined]
