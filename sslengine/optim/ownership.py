"""Is every parameter that a loss depends on trained? What no optimizer updates is reported."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from sslengine.errors import ConfigError, TrainingError, listing
from sslengine.optim.learner import LOSS
from sslengine.optim.param_groups import trainable

log = logging.getLogger("sslengine")


def expect_owners(learner: nn.Module, groups: Collection[Mapping[str, Any]]) -> None:
    """Raise ConfigError if a trainable parameter is in no group of any optimizer.

    Such a parameter would keep its initial value, and its gradient would grow with every step.
    """
    owned = {id(parameter) for group in groups for parameter in group["params"]}
    without_owner = [each.name for each in trainable(learner) if id(each.parameter) not in owned]
    if without_owner:
        raise ConfigError(
            f"no optimizer owns these trainable parameters, which would keep their initial values: "
            f"{listing(without_owner, 10)}. Pass them to the optimizer, or freeze them: "
            f"requires_grad_(False), or config.MODEL.NON_TRAINABLE_PARAMS."
        )


def expect_none_made_late(
    model: nn.Module, loss: nn.Module, groups: Collection[Mapping[str, Any]]
) -> None:
    """Raise TrainingError if a step gave a gradient to a parameter that no optimizer knows.

    After the first step: what `forward` or `before_phase` makes is not there when a run is built.
    """
    owned = {id(parameter) for group in groups for parameter in group["params"]}
    named = (*model.named_parameters(), *loss.named_parameters(LOSS))
    late = [name for name, p in named if p.grad is not None and id(p) not in owned]
    if late:
        raise TrainingError(
            f"no optimizer updates {listing(late, 10)}: made after the run was built, and not "
            f"trained. Make parameters in `__init__`, or in the method's `attach(model)`."
        )


def expect_gradients(optimizer: Any) -> None:
    """Raise TrainingError if no parameter has a gradient: before the first update."""
    owned = [each for group in optimizer.param_groups for each in group["params"]]
    if owned and all(each.grad is None for each in owned):
        raise TrainingError(
            "the first optimizer step finds no gradient: the loss depends on no parameter that is "
            "trained; or config.TRAINER.TRAIN_STEP_NAME names a step that does not call "
            "TrainStep.backward; or all parameters are frozen, by a hook or "
            "config.MODEL.TEMP_FROZEN_PARAMS_ITER_MAP (_EPOCH_MAP)."
        )


def warn_of_unregistered(losses: Iterable[Tensor], known: Iterable[nn.Parameter]) -> None:
    """Log parameters that the losses depend on and that are in no module that the run knows.

    Such as those in a list of modules or a closure: they get gradients, and nothing trains, saves
    or reduces them. They have no names, so their shapes are logged.
    """
    ids = {id(parameter) for parameter in known}
    unknown = [tuple(each.shape) for each in _parameters_of(losses) if id(each) not in ids]
    if unknown:
        shown = ", ".join(map(str, unknown[:6])) + (", ..." if len(unknown) > 6 else "")
        log.warning(
            "the loss depends on %d parameters that are in no module of the model or the method, "
            "so they are not trained and not saved; their shapes: %s. Make them attributes of the "
            "method (of lists: nn.ModuleList), or freeze them: requires_grad_(False).",
            len(unknown),
            shown,
        )


def _parameters_of(losses: Iterable[Tensor]) -> Iterator[nn.Parameter]:
    """Yield the leaves of their graph."""
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
