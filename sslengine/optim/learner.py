"""The learner: one module that contains the model and the method, all that a run trains.

It is never called; it only gives names: the model's parts keep theirs (`trunk.*`, `heads.*`), the
method is `loss.*`. Optimizers, reduction over ranks, clipping, reports and freezing use it, so a
method's parameters are trained as the model's are.
"""

from __future__ import annotations

from itertools import chain

from torch import nn
from torch.nn.parameter import is_lazy

from sslengine.errors import ConfigError, listing

LOSS = "loss"


class Learner(nn.Module):
    """Used only if the method has trainable parameters; otherwise the model is the learner."""

    loss: nn.Module


def trains(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def learner_of(model: nn.Module, method: nn.Module) -> nn.Module:
    named = chain(
        model.named_parameters(), method.named_parameters(LOSS), method.named_buffers(LOSS)
    )
    if lazy := [name for name, each in named if is_lazy(each)]:
        raise ConfigError(
            f"{listing(lazy, 6)}: a lazy module gets its width from the first batch, after the "
            f"optimizer is made. Give it one: nn.Linear(width, ...)."
        )
    if not trains(method):
        return model
    both = Learner()
    for name, parameter in model.named_parameters(recurse=False):
        both.register_parameter(name, parameter)
    for name, part in (*model.named_children(), (LOSS, method)):
        if hasattr(both, name):
            raise ConfigError(
                f"the model has a submodule {name!r}, but the parameters of "
                f"{type(method).__name__} are named {name}.*. Rename the submodule."
            )
        both.add_module(name, part)
    return both
