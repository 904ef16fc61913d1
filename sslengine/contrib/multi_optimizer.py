"""`multi_optimizer_train_step`: several losses, several optimizers, in one step.

The loss returns a dict of named losses. Each optimizer has parameters that it owns, by patterns on
their names, and losses that it follows:

    config.TRAINER.multi_optimizer_train_step.OPTIMIZERS:
      trunk:      {parameters: [trunk.*], losses: [contrastive, variance], name: lars, ...}
      projector:  {parameters: [heads.*, loss.*], losses: [contrastive], name: adamw, ...}

The rest of each is what config.OPTIMIZER takes. An optimizer uses the gradients of its losses only.
A parameter may have several owners: each updates it by the gradient of its losses, in order; all
gradients are computed before the first update. Every trainable parameter has at least one.

Cost: one backward pass for each distinct set of losses, with the graph kept until the last; for a
parameter with several owners, one gradient for each set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from omegaconf import DictConfig
from torch import Tensor, nn

from sslengine.config.ranges import above
from sslengine.config.sections import read
from sslengine.distributed.data_parallel import mean_of_gradients
from sslengine.engine.step import Loss, Sample, TrainStep, expect_numbers, expect_registered
from sslengine.errors import CheckpointError, ConfigError, TrainingError, listing, nearest
from sslengine.models.options import ModelOptions
from sslengine.optim.build import OptionsView, ScheduledOptimizer, build_optimizer
from sslengine.optim.learner import Trainable, learner_of, trainable
from sslengine.optim.options import OptimizerSettings
from sslengine.optim.param_groups import match_parameters
from sslengine.precision import Precision
from sslengine.registry import register_train_step

if TYPE_CHECKING:
    from sslengine.engine.task import SelfSupervisionTask

NAME = "multi_optimizer_train_step"
WHERE = f"config.TRAINER.{NAME}.OPTIMIZERS"


@dataclass
class OwnedOptimizerOptions(OptimizerSettings):
    """One of several optimizers. config.OPTIMIZER sets the run's length and `accumulate`."""

    # Patterns of the names of its parameters: trunk.*, heads.0.*, loss.* for those of the loss.
    parameters: list[str] = field(default_factory=list)
    # The losses whose sum it minimises, by the names in the dict that the loss returns.
    losses: list[str] = field(default_factory=list)
    # Clip the norm of all its gradients; null: no clipping.
    clip_norm: float | None = above(0, None)

    def check(self) -> Iterator[str]:
        yield from super().check()
        if not self.parameters:
            yield "parameters: expected patterns of parameter names, such as [trunk.*, heads.0.*]."
        if not self.losses:
            yield "losses: expected names of losses in the dict that the loss returns."
        if self.use_zero:
            yield "use_zero: not available for several optimizers; set it to false."


@dataclass
class MultiOptimizerOptions:
    # Each under a name of your own: `parameters`, `losses`, and keys as of config.OPTIMIZER.
    OPTIMIZERS: dict[str, OwnedOptimizerOptions] = field(default_factory=dict)

    def check(self) -> Iterator[str]:
        if not self.OPTIMIZERS:
            yield "OPTIMIZERS: expected one or more, each with its `parameters` and `losses`."


@register_train_step(NAME, options=MultiOptimizerOptions)
class MultiOptimizerTrainStep(TrainStep):
    reduces_by_hand = True  # DDP's hooks would follow the first of several backward passes

    def __init__(self, options: MultiOptimizerOptions) -> None:
        self.optimizers = options.OPTIMIZERS

    def build_optimizer(
        self, config: DictConfig, model: nn.Module, loss: nn.Module, device: torch.device,
        epochs: float,
    ) -> SeveralOptimizers:  # fmt: skip
        if read(config, ModelOptions).GRAD_CLIP.USE_GRAD_CLIP:
            raise ConfigError(
                f"config.MODEL.GRAD_CLIP: of several optimizers each clips its own gradients; "
                f"set {WHERE}.<name>.clip_norm."
            )
        everything = learner_of(model, loss)
        owners, patterns = [], {name: each.parameters for name, each in self.optimizers.items()}
        for name, owned in owned_parameters(everything, patterns, WHERE).items():
            options = self.optimizers[name]
            try:
                with only(everything, owned):
                    optimizer = build_optimizer(everything, options, device, epochs)
            except ConfigError as error:
                raise ConfigError(f"{WHERE}.{name}: {error}") from error
            parameters = [each.parameter for each in owned]
            losses = tuple(sorted(set(options.losses)))
            owners.append(Owner(name, optimizer, parameters, losses, options.clip_norm))
        return SeveralOptimizers(owners, WHERE)

    def losses(self, task: SelfSupervisionTask, output: Any, sample: Sample) -> dict[str, Tensor]:
        """Return several by their names, and as "loss", for the log, the sum of those followed."""
        losses = expect_numbers(
            super().losses(task, output, sample), type(task.parts.loss).__name__
        )
        optimizer = task.parts.optimizer
        optimizer.check_losses(losses)
        if "loss" in losses:
            return losses
        return {"loss": reduce(add, (losses[name] for name in optimizer.losses)), **losses}

    def differentiate(self, task: SelfSupervisionTask, loss: Loss) -> None:
        """Compute each optimizer's gradients, by the losses that it follows."""
        assert not isinstance(loss, Tensor)
        parts, group = task.parts, task.state.group
        if group.first:
            parts.optimizer.zero_grad()
        if task.first_step:
            expect_registered(task, *(loss[name] for name in parts.optimizer.losses))
        parts.optimizer.backward(parts.precision, loss, group.weight)
        if not (parts.reduction.by_hand and group.last):
            parts.optimizer.finish_backward(over_ranks=False)

    def reduce(self, task: SelfSupervisionTask) -> None:
        task.parts.optimizer.finish_backward(over_ranks=True)


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
            precision.scaler.step(inner)
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


def owned_parameters(
    model: nn.Module, patterns: Mapping[str, Collection[str]], where: str
) -> dict[str, list[Trainable]]:
    """Return the parameters of each optimizer, in the order of the model."""
    trained = list(trainable(model))
    owned: dict[str, list[Trainable]] = {}
    for owner, its in patterns.items():
        key = f"{where}.{owner}.parameters"
        matched = {each for pattern in its for each in match_parameters(model, pattern, key)}
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
