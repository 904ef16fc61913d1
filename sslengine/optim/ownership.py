"""Which of several optimizers updates which parameters, by patterns of names.

Names are those of the model, `trunk.*` and `heads.0.*`, and those of the loss, `loss.*`.
A parameter may have several owners; every trainable parameter has at least one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from sslengine.errors import ConfigError, TrainingError, listing
from sslengine.optim.learner import LOSS
from sslengine.optim.param_groups import Trainable, trainable
from sslengine.optim.patterns import matching


def owned_parameters(
    model: nn.Module, patterns: Mapping[str, Collection[str]], where: str
) -> dict[str, list[Trainable]]:
    """Return the parameters of each optimizer, in the order of the model."""
    trained = list(trainable(model))
    owned: dict[str, list[Trainable]] = {}
    for owner, its in patterns.items():
        key = f"{where}.{owner}.parameters"
        matched = {each for pattern in its for each in matching(model, pattern, key)}
        owned[owner] = [each for each in trained if each.parameter in matched]
    names = {each.name for its in owned.values() for each in its}
    without_owner = [each.name for each in trained if each.name not in names]
    if without_owner:
        raise ConfigError(
            f"{where}: no optimizer owns {listing(without_owner, 10)}. Add a pattern to the "
            f"`parameters` of one, or freeze them (config.MODEL.NON_TRAINABLE_PARAMS)."
        )
    return owned


@contextmanager
def only(model: nn.Module, kept: Collection[Trainable]) -> Iterator[None]:
    """Within the context, only these parameters are trainable."""
    mine = {id(each.parameter) for each in kept}
    others = [p for p in model.parameters() if p.requires_grad and id(p) not in mine]
    try:
        for parameter in others:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in others:
            parameter.requires_grad_(True)


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
