"""The learner: one module that contains the model and the method, all that a run trains.

It is never called; it only gives names: the model's parts keep theirs (`trunk.*`, `heads.*`), the
method is `loss.*`. Optimizers, reduction over ranks, clipping, reports and freezing use it, so a
method's parameters are trained as the model's are. What no optimizer would update is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from sslengine.errors import ConfigError, TrainingError, listing

log = logging.getLogger("sslengine")

LOSS = "loss"
_NORM_TYPES = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


class Learner(nn.Module):
    """Used only if the method has trainable parameters; otherwise the model is the learner."""

    loss: nn.Module


def trains(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def learner_of(model: nn.Module, method: nn.Module) -> nn.Module:
    """Join the model and the method; ConfigError if a parameter has no width yet or two names."""
    named = chain(
        model.named_parameters(), method.named_parameters(LOSS), method.named_buffers(LOSS)
    )
    if lazy := [name for name, each in named if is_lazy(each)]:
        raise ConfigError(
            f"{listing(lazy, 6)}: a lazy module; give it a width: nn.Linear(width, ...)."
        )
    if not trains(method):
        return model
    both = Learner()
    for name, parameter in model.named_parameters(recurse=False):
        both.register_parameter(name, parameter)
    for name, part in (*model.named_children(), (LOSS, method)):
        if hasattr(both, name):
            raise ConfigError(
                f"the model's submodule {name!r} has the name of the method: rename it."
            )
        both.add_module(name, part)
    return both


class Trainable(NamedTuple):
    name: str
    parameter: nn.Parameter
    owner: nn.Module

    @property
    def is_in_head(self) -> bool:
        """Tell whether it uses the schedules of heads, as a method's parameters do."""
        return self.name.startswith(("heads.", "loss."))

    @property
    def is_bias(self) -> bool:
        return self.name.endswith((".bias", "_bias"))

    @property
    def is_in_norm(self) -> bool:
        """Tell whether the layer is a norm of torch, or of a class whose name ends with Norm."""
        return isinstance(self.owner, _NORM_TYPES) or type(self.owner).__name__.endswith("Norm")


def trainable(model: nn.Module) -> Iterator[Trainable]:
    """Yield each trainable parameter once, also if several modules share it."""
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        for name, parameter in module.named_parameters(prefix, recurse=False):
            if parameter.requires_grad and id(parameter) not in seen:
                seen.add(id(parameter))
                yield Trainable(name, parameter, module)


# ---- is everything trained that should be?


def expect_owners(learner: nn.Module, groups: Collection[Mapping[str, Any]]) -> None:
    """Raise ConfigError if a trainable parameter is in no group of any optimizer.

    Such a parameter would keep its initial value, and its gradient would grow with every step.
    """
    owned = _ids(groups)
    without_owner = [each.name for each in trainable(learner) if id(each.parameter) not in owned]
    if without_owner:
        raise ConfigError(
            f"no optimizer owns these trainable parameters: {listing(without_owner, 10)}. Pass "
            f"them to the optimizer, or freeze them (config.MODEL.NON_TRAINABLE_PARAMS)."
        )


def expect_none_made_late(
    model: nn.Module, loss: nn.Module, groups: Collection[Mapping[str, Any]]
) -> None:
    """Raise TrainingError if a step gave a gradient to a parameter that no optimizer knows.

    After the first step: what `forward` or `before_phase` makes is not there when a run is built.
    """
    owned = _ids(groups)
    named = (*model.named_parameters(), *loss.named_parameters(LOSS))
    late = [name for name, p in named if p.grad is not None and id(p) not in owned]
    if late:
        raise TrainingError(
            f"no optimizer updates {listing(late, 10)}: made after the run was built. Make "
            f"parameters in `__init__`, or in the method's `attach(model)`."
        )


def _ids(groups: Collection[Mapping[str, Any]]) -> set[int]:
    return {id(parameter) for group in groups for parameter in group["params"]}


def expect_gradients(optimizer: Any) -> None:
    """Raise TrainingError if no parameter has a gradient: before the first update."""
    owned = [each for group in optimizer.param_groups for each in group["params"]]
    if owned and all(each.grad is None for each in owned):
        raise TrainingError(
            "the first optimizer step finds no gradient: the loss depends on no parameter that is "
            "trained, or the train step does not call TrainStep.backward, or all is frozen "
            "(config.MODEL.TEMP_FROZEN_PARAMS_ITER_MAP, _EPOCH_MAP)."
        )


def warn_of_unregistered(losses: Iterable[Tensor], known: Iterable[nn.Parameter]) -> None:
    """Log the shapes of parameters that the losses depend on and that no module of the run has.

    They are in a list of modules or a closure: nothing trains, saves or reduces them.
    """
    ids = {id(parameter) for parameter in known}
    unknown = [tuple(each.shape) for each in _parameters_of(losses) if id(each) not in ids]
    if unknown:
        log.warning(
            "the loss depends on %d parameters that are in no module of the model or the method: "
            "they are not trained and not saved. Shapes: %s. Use nn.ModuleList, or freeze them.",
            len(unknown), listing(map(str, unknown), 6),
        )  # fmt: skip


def _parameters_of(losses: Iterable[Tensor]) -> Iterator[nn.Parameter]:
    """Yield the parameters that are leaves of the graph of these losses."""
    seen: set[Any] = set()
    nodes: list[Any] = [loss.grad_fn for loss in losses]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, nn.Parameter):
            yield leaf
        nodes.extend(following for following, _ in node.next_functions)
