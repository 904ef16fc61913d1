"""Freeze parameters for a time, log and clip gradients."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sslengine.distributed.collectives import max_in_place
from sslengine.distributed.sharding import is_sharded, local, norms
from sslengine.errors import ConfigError, nearest
from sslengine.hooks.events import Hook, Task
from sslengine.optim.optimizers import ScaleEach

# Names of parameters, each with the first update or epoch that trains them.
Frozen = Sequence[tuple[str, int]]


class FreezeParameters(Hook):
    """`MODEL.TEMP_FROZEN_PARAMS_ITER_MAP: [[name, updates], ...]`: not trained before that; and
    `MODEL.TEMP_FROZEN_PARAMS_EPOCH_MAP: [[name, epochs], ...]`.

    Updates are optimizer steps: VISSL, which counts iterations here, does not accumulate. Names may
    begin with `module.`, as they must in VISSL, and contain `*`: `trunk.*` is the trunk.

    by_rate: they have gradients, but stay as with a learning rate of 0; otherwise they have none.
    """

    def __init__(self, updates: Frozen = (), epochs: Frozen = (), by_rate: bool = False) -> None:
        self.updates, self.epochs, self.by_rate = updates, epochs, by_rate

    def on_start(self, task: Task) -> None:
        known = dict(task.learner.named_parameters())
        self._until_update = [*_find(known, self.updates, "ITER_MAP")]
        self._until_epoch = [*_find(known, self.epochs, "EPOCH_MAP")]
        if self.by_rate:
            for each in getattr(task.optimizer, "owners", ()) or (task,):
                each.optimizer.inner.register_step_post_hook(self._put_back)

    def on_backward(self, task: Task) -> None:
        frozen = [each for each, until in self._until_update if task.num_updates < until]
        frozen += [each for each, until in self._until_epoch if task.phase.epoch < until]
        self._kept = {each: each.detach().clone() for each in frozen if self.by_rate}
        for parameter in () if self.by_rate else frozen:
            parameter.grad = None

    @torch.no_grad()
    def _put_back(self, *_: Any) -> None:
        """Before anything follows the parameters, such as a teacher."""
        for parameter, value in self._kept.items():
            parameter.copy_(value)


def _find(
    known: Mapping[str, nn.Parameter], frozen: Frozen, key: str
) -> Iterator[tuple[nn.Parameter, int]]:
    for pattern, until in frozen:
        name = pattern.removeprefix("module.")
        names = fnmatch.filter(known, name)
        if not names:
            raise ConfigError(
                f"config.MODEL.TEMP_FROZEN_PARAMS_{key}: there is no parameter {name!r}. "
                f"{nearest(name, known)}".rstrip()
            )
        yield from ((known[each], int(until)) for each in names)


class LogGradientNorm(Hook):
    """`grad_norm`, with each log line: the norm of all gradients, before they are clipped.

    Does not synchronise with the device.
    """

    def __init__(self, frequency: int) -> None:
        self.frequency = frequency

    def on_phase_start(self, task: Task) -> None:
        self.due = 0

    def on_backward(self, task: Task) -> None:
        made, left = task.progress.step + 1, task.phase.steps - task.progress.step - 1
        after_a_line = (task.iteration + 1) % self.frequency
        self.due = task.state.steps + 1 + min(self.frequency - after_a_line, max(1, left))
        has_line = made == 1 or left == 0 or after_a_line == 0
        if not (has_line and task.updating):
            return
        for each in getattr(task.optimizer, "owners", ()) or (task,):
            task.precision.unscale(each.optimizer.inner)
        gradients = [each.grad for each in task.learner.parameters() if each.grad is not None]
        if gradients:
            (lengths,) = norms(gradients)
            task.storage.put_own("grad_norm", lengths.norm(), window=1)


class ClipGradients(Hook):
    """`MODEL.GRAD_CLIP`: clip the norm of all gradients together, of each separately, or of those
    of each module: the trunk, each head, the method, another part of a custom model.

    Does not synchronise with the device.
    """

    def __init__(
        self,
        max_norm: float,
        norm_type: float,
        per_parameter: bool = False,
        per_module: bool = False,
    ) -> None:
        self.max_norm, self.norm_type = max_norm, norm_type
        self.per_parameter, self.per_module = per_parameter, per_module
        self._scale_each = ScaleEach()

    def on_backward(self, task: Task) -> None:
        if not task.updating:
            return
        task.precision.unscale(task.optimizer.inner)
        if self.per_module:
            for part in group_by_module(task.learner):
                self._clip(part)
        else:
            self._clip(task.learner.parameters())

    def _clip(self, parameters: Iterable[nn.Parameter]) -> None:
        parameters = [each for each in parameters if each.grad is not None]
        gradients = [each.grad for each in parameters if each.grad is not None]
        if not gradients:
            return
        if self.per_parameter:
            clip_each(gradients, self.max_norm, self._scale_each)
        elif math.isinf(self.norm_type) and is_sharded(gradients[0]):
            clip_to_largest(gradients, self.max_norm)
        else:
            torch.nn.utils.clip_grad_norm_(parameters, self.max_norm, self.norm_type)


def group_by_module(learner: nn.Module) -> Iterator[list[nn.Parameter]]:
    """Yield the parameters of each child; of `heads` and of a method's `student`, of each part."""
    parts: dict[str, list[nn.Parameter]] = {}
    for name, parameter in learner.named_parameters():
        below = next(filter(name.startswith, ("heads.", "loss.student.")), "")
        part = below + name.removeprefix(below).partition(".")[0]
        parts.setdefault(part, []).append(parameter)
    yield from parts.values()


@torch.no_grad()
def clip_to_largest(gradients: Sequence[Tensor], max_norm: float) -> None:
    """Clip sharded gradients by their largest element: torch fails on an empty local shard."""
    shares = [each for each in map(local, gradients) if each.numel()]
    largest = local(gradients[0]).new_zeros(())
    if shares:
        largest = torch.stack(torch._foreach_norm(shares, math.inf)).max()
    factor = (max_norm / (max_in_place(largest) + 1e-6)).clamp(max=1.0)
    if shares:
        torch._foreach_mul_(shares, factor)


@torch.no_grad()
def clip_each(gradients: Sequence[Tensor], max_norm: float, scale_each: ScaleEach) -> None:
    """Scale each gradient with a norm above max_norm down to max_norm."""
    (lengths,) = norms(gradients)
    factors = (max_norm / (lengths + 1e-6)).clamp(max=1.0)
    scale_each([local(each) for each in gradients], factors)
