"""Train steps as the engine makes them, for comparisons with the authors' code over several steps.

The optimizer, its groups and schedules are those of a config; hooks on gradients are the engine's.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from sslengine.config.resolve import resolve, resolve_dict
from sslengine.config.sections import read
from sslengine.engine.build import build_base_model, build_loss
from sslengine.hooks.events import Hook
from sslengine.methods.base import Step, callbacks
from sslengine.methods.whole import Batch
from sslengine.optim.build import build_optimizer
from sslengine.optim.learner import learner_of
from sslengine.optim.options import OptimizerOptions
from sslengine.precision import Precision
from tests.config.recipes import recipe

# One step of warm-up in ten, and rates at which ten steps change something.
RATES = (
    "param_schedulers.lr.schedulers.0.end_value=0.02",
    "param_schedulers.lr.schedulers.1.start_value=0.02",
    "param_schedulers.lr.lengths=[0.1,0.9]",
)


def optimizer_of(recipe: str, *changes: str) -> OptimizerOptions:
    """config.OPTIMIZER of a shipped config."""
    given = [f"config.OPTIMIZER.{each}" for each in changes]
    return read(resolve([f"config={recipe}", *given]).config, OptimizerOptions)


def method_of(**changes: Any) -> Any:
    """Build the method of a config that owns its network, in float64."""
    torch.manual_seed(0)
    config, cpu = resolve_dict(recipe(**changes)).config, torch.device("cpu")
    return build_loss(config, build_base_model(config, cpu).double(), 1, cpu).double()


def parameters_of(method: Any) -> dict[str, nn.Parameter]:
    """Return the parameters of the trunk, and those that the method trains itself."""
    trunk = {f"trunk.{name}": each for name, each in method.trunk.trunk.named_parameters()}
    return trunk | {name: each for name, each in method.named_parameters() if each.requires_grad}


def train(
    model: nn.Module,
    loss: Any,
    options: OptimizerOptions,
    hooks: Sequence[Hook],
    inputs: Iterable[Any],
    length: int,
    per_epoch: int = 1,
) -> Iterator[Mapping[str, Tensor]]:
    """Yield the losses of each step. length: of the run, in steps.

    inputs: the model's; or batches, of a method that owns its network.
    """
    learner = learner_of(model, loss)
    optimizer = build_optimizer(learner, options, torch.device("cpu"), length / per_epoch)
    precision = Precision()
    for number, given in enumerate(inputs):
        where, epoch = number / length, number // per_epoch
        step = Step.alone(iteration=number, num_updates=number, epoch=epoch, where=where)
        task = SimpleNamespace(
            learner=learner, updating=True, iteration=number, num_updates=number,
            precision=precision, optimizer=optimizer,
        )  # fmt: skip
        if number == 0:
            for hook in hooks:
                hook.on_start(task)
        optimizer.on_epoch(epoch * per_epoch / length)
        optimizer.schedule(where)
        if isinstance(given, Batch):
            losses = loss(given, step)
        else:
            losses = loss(model(given), {"input": given}, step)
        optimizer.zero_grad()
        losses["loss"].backward()
        for hook in hooks:
            hook.on_backward(task)
        optimizer.step(precision)
        for callback in callbacks(loss, "after_update"):
            callback(step)
        yield losses


def wave(shape: tuple[int, ...], number: int) -> Tensor:
    """Values that any machine computes."""
    steps = torch.arange(math.prod(shape), dtype=torch.float64)
    return torch.sin(steps * (0.37 + 0.11 * number) + number).view(shape)


@torch.no_grad()
def fill(named: Iterable[tuple[str, Tensor]], size: float = 0.3) -> None:
    """By the authors' names of the parameters: such values, near 1 for norms and lengths."""
    for name, parameter in named:
        start = zlib.crc32(name.encode()) % 1000
        steps = torch.arange(parameter.numel(), dtype=torch.float64)
        waves = (steps * 0.7 + start).sin()
        near_1 = ("norm" in name and name.endswith("weight")) or name.endswith("weight_g")
        parameter.copy_((1 + 0.1 * waves if near_1 else size * waves).view_as(parameter))


def squares(module: nn.Module) -> float:
    return sum(float(each.detach().square().sum()) for each in module.parameters())
