"""The learner: one module that contains the model and the method, all that a run trains.

It is never called; it only gives names: the model's parts keep theirs (`trunk.*`, `heads.*`), the
method is `loss.*`. Optimizers, reduction over ranks, clipping, reports and freezing use it, so a
method's parameters are trained as the model's are.
"""

from __future__ import annotations

from torch import nn

from sslengine.errors import ConfigError

LOSS = "loss"


class Learner(nn.Module):
    """Used only if the method has trainable parameters; otherwise the model is the learner."""

    loss: nn.Module


def trains(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def learner_of(model: nn.Module, method: nn.Module) -> nn.Module:
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
