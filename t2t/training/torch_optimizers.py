"""torch's optimizers, without the import of its compiler.

torch keeps its compiler from tracing an optimizer's methods, and imports it to say so:
at the first call of each, which takes seconds. We never compile an optimizer, and use
the methods as they are inside that.
"""

from inspect import unwrap

import torch


class Optimizer(torch.optim.Optimizer):
    """The base of all optimizers."""

    add_param_group = unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = unwrap(torch.optim.Optimizer.zero_grad)
    state_dict = unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = unwrap(torch.optim.Optimizer.load_state_dict)


class AdamW(Optimizer, torch.optim.AdamW):
    """torch's AdamW."""

    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))


class SGD(Optimizer, torch.optim.SGD):
    """torch's SGD."""

    step = torch.no_grad()(unwrap(torch.optim.SGD.step))
