"""Several optimizers, each with parameters, losses and schedules.

An optimizer uses the gradients of its losses only. If a parameter has two owners, each updates it
by the gradient of its losses, in order; all gradients are computed before the first update.

Cost: one backward pass for each distinct set of losses, with the graph kept until the last; for a
parameter with several owners, one gradient for each set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sslengine.distributed.data_parallel import mean_of_gradients
from sslengine.errors import CheckpointError, TrainingError, nearest
from sslengine.optim.scheduled import OptionsView, ScheduledOptimizer
from sslengine.precision import Precision


@dataclass(frozen=True)
class Owner:
    name: str
    optimizer: ScheduledOptimizer
    parameters: Sequence[nn.Parameter]
    losses: tuple[str, ...]
    clip_norm: float | None = None


class _LossSet(NamedTuple):
    """Losses with one backward pass, and the parameters that get their gradients."""

    losses: tuple[str, ...]
    parameters: list[nn.Parameter]
    shared: list[nn.Parameter]  # the parameters with several owners
    gradients: dict[nn.Parameter, Tensor | None]  # of the shared parameters


class SeveralOptimizers:
    """Has the interface of ScheduledOptimizer, except `inner`."""

    def __init__(self, owners: Sequence[Owner], where: str = "the optimizers") -> None:
        """where: their key path, for messages."""
        self.owners, self.where = tuple(owners), where
        self.options_view = OptionsView(self)
        self.losses = tuple(dict.fromkeys(name for owner in owners for name in owner.losses))
        counts = Counter(p for owner in owners for p in owner.parameters)
        self._shared = {p for p, count in counts.items() if count > 1}
        self._sets = {owner.losses: self._loss_set(owner.losses) for owner in owners}

    def _loss_set(self, losses: tuple[str, ...]) -> _LossSet:
        owners = (owner for owner in self.owners if owner.losses == losses)
        parameters = list(dict.fromkeys(p for owner in owners for p in owner.parameters))
        return _LossSet(losses, parameters, [p for p in parameters if p in self._shared], {})

    @property
    def inner(self) -> Any:
        raise TrainingError(
            f"{self.where}: a hook reads `task.optimizer.inner`, but there are {len(self.owners)} "
            f"optimizers: see `task.optimizer.owners`, each with `optimizer.inner`."
        )

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for owner in self.owners for group in owner.optimizer.param_groups]

    def learning_rates(self) -> dict[str, float]:
        own = {f"lr.{each.name}": each.optimizer.options_view.lr for each in self.owners}
        return {"lr": self.options_view.lr, **own}

    def schedule(self, where: float) -> None:
        for owner in self.owners:
            owner.optimizer.schedule(where)

    def on_epoch(self, where: float) -> None:
        for owner in self.owners:
            owner.optimizer.on_epoch(where)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for owner in self.owners:
            owner.optimizer.zero_grad(set_to_none)
        for each in self._sets.values():
            each.gradients.clear()

    def check_losses(self, given: Mapping[str, Tensor]) -> None:
        """Raise an error if a loss is missing, or if one with a gradient has no optimizer."""
        for owner in self.owners:
            for name in owner.losses:
                if name not in given:
                    raise TrainingError(
                        f"{self.where}.{owner.name}.losses: the loss returns no {name!r}, it "
                        f"returns {', '.join(map(repr, given))}. {nearest(name, given)}".rstrip()
                    )
        if "loss" in self.losses:
            return  # the total to minimise; the other entries are its parts, for the log
        for name, value in given.items():
            if name not in self.losses and name != "loss" and value.requires_grad:
                raise TrainingError(
                    f"{self.where}: no optimizer minimises the loss {name!r}. Add it to the "
                    f"`losses` of one; if it is only to be logged, return it detached."
                )

    def backward(self, precision: Precision, losses: Mapping[str, Tensor], weight: float) -> None:
        """Add the gradients of a batch; `weight` is its share of the accumulated batches."""
        for number, each in enumerate(self._sets.values(), start=1):
            total = reduce(add, (losses[name] for name in each.losses))
            for parameter in each.shared:
                parameter.grad = each.gradients.get(parameter)
            precision.backward(
                total * weight if weight != 1.0 else total,
                inputs=each.parameters,
                retain_graph=number < len(self._sets),
            )
            each.gradients.update({p: p.grad for p in each.shared})

    def finish_backward(self, over_ranks: bool) -> None:
        """Set `grad` of shared parameters, for hooks, to the sum over the sets of losses.

        over_ranks: first average the gradients over ranks.
        """
        if over_ranks:
            self._reduce()
        for parameter in self._shared:
            every = [each.gradients.get(parameter) for each in self._sets.values()]
            some = [gradient for gradient in every if gradient is not None]
            parameter.grad = torch.stack(some).sum(0) if some else None

    def _reduce(self) -> None:
        every = [(each, p) for each in self._sets.values() for p in each.parameters]
        mine = [each.gradients.get(p) if p in self._shared else p.grad for each, p in every]
        means = mean_of_gradients([p for _, p in every], mine)
        for (each, parameter), mean in zip(every, means, strict=True):
            if parameter in self._shared:
                each.gradients[parameter] = mean
            else:
                parameter.grad = mean

    def step(self, precision: Precision) -> None:
        """Step all optimizers in order, with gradients that were computed before the first step."""
        for owner in self.owners:
            self._set_shared_gradients(owner)
            inner = owner.optimizer.inner
            if owner.clip_norm is not None:
                precision.unscale(inner)
                present = [p for p in owner.parameters if p.grad is not None]
                torch.nn.utils.clip_grad_norm_(present, owner.clip_norm)
            precision.step_one(inner)
        precision.update()

    def _set_shared_gradients(self, owner: Owner) -> None:
        """Set `grad` of shared parameters to that of the owner's losses, unless a hook froze it."""
        gradients = self._sets[owner.losses].gradients
        for parameter in owner.parameters:
            if parameter in self._shared and parameter.grad is not None:
                mine = gradients[parameter]  # a copy: scalers and clipping write into it
                parameter.grad = None if mine is None else mine.clone()

    def state_dict(self) -> dict[str, Any]:
        return {owner.name: owner.optimizer.state_dict() for owner in self.owners}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        names = [owner.name for owner in self.owners]
        if sorted(state) != sorted(names):
            raise CheckpointError(
                f"the checkpoint has the optimizers {', '.join(sorted(state))}, but this run has "
                f"{', '.join(sorted(names))} ({self.where})."
            )
        for owner in self.owners:
            owner.optimizer.load_state_dict(state[owner.name])
