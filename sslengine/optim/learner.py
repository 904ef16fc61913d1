"""The learner: model and method together, all that a run trains.

A module that gives names and is never called: the parts of the model under their own names
(`trunk.*`, `heads.*`), the method below `loss.`. Optimizers, reduction over ranks, clipping,
reports and freezing go by it, so that a method's parameters are trained as the model's are.
"""

from __future__ import annotations

from torch import nn

from sslengine.errors import ConfigError

LOSS = "loss"


class Learner(nn.Module):
    """Only where the method has parameters to train; else the model stands for itself."""

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
                f"the model has a part called {name!r}, the name by which the parameters of "
                f"{type(method).__name__} are known. Give it another name."
            )
        both.add_module(name, part)
    return both
