"""The verbs that train steps are made of. Each is timed under VISSL's name for it.

None of them waits for the device: losses, meters and timings stay there until
LOG_FREQUENCY (see monitor/loss_ledger.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import reduce
from operator import add
from typing import Any, Protocol

import torch
from torch import Tensor

from sslengine.distributed.data_parallel import (
    manual_gradient_all_reduce,
    manual_sync_params,
    no_sync,
)
from sslengine.errors import TrainingError

Sample = dict[str, Any]
BuildSample = Callable[[Any, Sequence[str], Sequence[str]], Sample]
Loss = Tensor | Mapping[str, Tensor]


_AS_IT_IS = nullcontext()


class StepTask(Protocol):
    """What the stages use of the task."""

    train: bool
    test_only: bool
    state: Any
    model: torch.nn.Module
    base_model: torch.nn.Module
    loss: torch.nn.Module
    loss_takes_sample: bool
    method_step: Any
    after_backward: Sequence[Callable[[Any], None]]
    after_update: Sequence[Callable[[Any], None]]
    optimizer: Any
    precision: Any
    ledger: Any
    perf: Any
    group: Any
    last_batch: Any
    progress: Any
    exchange: Any
    active_meters: Sequence[Any]
    input_keys: Sequence[str]
    target_keys: Sequence[str]

    @property
    def where(self) -> float: ...
    def next_batch(self) -> Any: ...
    def run_hooks(self, event: str) -> None: ...


def step_timer(task: StepTask) -> AbstractContextManager[None]:
    """Time of the whole step."""
    return task.perf.train_step_total  # type: ignore[no-any-return]


def compute_context(task: StepTask) -> AbstractContextManager[Any]:
    """Gradients on in training, off in test phases.

    Within it ranks keep their gradients to themselves where they are reduced by hand,
    and for all but the last batch of an accumulated group, which then reduces the sum.
    """
    if not task.train:
        return torch.no_grad()
    if not task.exchange.reduce_by_hand and task.group.last:
        return _AS_IT_IS if torch.is_grad_enabled() else torch.enable_grad()
    stack = ExitStack()
    stack.enter_context(torch.enable_grad())
    stack.enter_context(no_sync(task.model, task.loss))
    return stack


def read_sample(task: StepTask, build: BuildSample) -> Sample:
    """The next batch, on the device, as the sample dict of the step."""
    with task.perf.read_sample:
        sample = build(task.next_batch(), task.input_keys, task.target_keys)
    task.last_batch.begin(sample)
    return sample


def forward(task: StepTask, sample: Sample) -> Any:
    """The model's output. Hooks may replace it: on_forward."""
    return announce(task, call_model(task, lambda model: model(sample["input"])))


def call_model(task: StepTask, call: Callable[[torch.nn.Module], Any]) -> Any:
    """`call(model)`, in the precision of the run; ranks have the same buffers before."""
    with task.perf.forward, task.precision.autocast():
        if task.train:
            manual_sync_params(task.base_model, task.exchange.broadcast_buffers_by_hand)
        return call(task.model)


def announce(task: StepTask, output: Any) -> Any:
    """The output as the loss gets it; a list of one is unwrapped. Fires on_forward."""
    if isinstance(output, list) and len(output) == 1:
        output = output[0]
    task.last_batch.model_output = output
    task.run_hooks("on_forward")
    return task.last_batch.model_output


def call_loss(task: StepTask, output: Any, sample: Sample) -> Loss:
    """In float32 whatever the precision of the model: losses divide by small temperatures."""
    output = task.precision.as_full(output)
    with task.perf.loss_compute:
        if task.loss_takes_sample:
            return task.loss(output, sample, task.method_step)  # type: ignore[no-any-return]
        return task.loss(output, sample["target"])  # type: ignore[no-any-return]


def compute_loss(task: StepTask, output: Any, sample: Sample) -> Loss:
    """What the loss gives: one number to minimise, and maybe others for the log."""
    loss = call_loss(task, output, sample)
    _check_numbers(task, {"loss": loss} if isinstance(loss, Tensor) else loss)
    if not isinstance(loss, Tensor) and "loss" not in loss:
        raise TrainingError(
            f"a loss must return a tensor, or a dict in which 'loss' is the one to minimise; "
            f"{type(task.loss).__name__} returned a dict of {', '.join(map(repr, loss))}."
        )
    return loss


def _check_numbers(task: StepTask, losses: Mapping[str, Tensor]) -> None:
    for name, value in losses.items():
        if value.numel() != 1:
            raise TrainingError(
                f"a loss must be one number; {type(task.loss).__name__} gives as {name!r} a tensor "
                f"of shape {tuple(value.shape)}: take its mean, or its sum."
            )


def compute_losses(task: StepTask, output: Any, sample: Sample) -> dict[str, Tensor]:
    """Several by their names, and under "loss" what the log shows: the sum of those followed."""
    given = call_loss(task, output, sample)
    losses = {"loss": given} if isinstance(given, Tensor) else dict(given)
    _check_numbers(task, losses)
    task.optimizer.check_losses(losses)
    if "loss" in losses:
        return losses
    return {"loss": reduce(add, (losses[name] for name in task.optimizer.losses)), **losses}


def reduce_loss(task: StepTask, loss: Loss) -> None:
    """Note the loss and begin to average it over ranks, beside the backward pass."""
    with task.perf.loss_all_reduce:
        batch = task.last_batch
        size, share = batch.size, batch.share
        if _left_out(task):
            size, share = (0 if share == 1.0 else size), 0.0  # other ranks may have samples
        batch.loss = task.ledger.record(loss, task.progress.iteration, size, share, batch.indices)


def _left_out(task: StepTask) -> bool:
    """Could no sample of a test batch be read? Then something without a number stands there."""
    indices = None if task.train else task.last_batch.indices  # on the host
    return isinstance(indices, Tensor) and indices.numel() > 0 and int(indices.max()) < 0


def update_meters(task: StepTask, output: Any, sample: Sample) -> None:
    """Meters accumulate on the device; None is nothing to measure. Fires on_loss_and_meter."""
    with task.perf.meters_update:
        measured = output is not None and not _left_out(task)
        for meter in task.active_meters if measured else ():
            meter.update(output, sample["target"])
    task.run_hooks("on_loss_and_meter")


def backward(task: StepTask, loss: Loss) -> None:
    """Gradients of this batch's share of its group. Fires on_backward."""
    with task.perf.backward:
        backward_of_loss(task, loss)
        reduce_gradients(task)
    announce_gradients(task)


def backward_of_each(task: StepTask, losses: Mapping[str, Tensor]) -> None:
    """Each optimizer's gradients, by the losses that it follows. Fires on_backward."""
    with task.perf.backward:
        if task.group.first:
            task.optimizer.zero_grad()
        task.optimizer.backward(task.precision, losses, task.group.weight)
        task.optimizer.finish_backward(over_ranks=task.exchange.reduce_by_hand and task.group.last)
    announce_gradients(task)


def reduce_gradients(task: StepTask) -> None:
    """At the end of a group: the means over ranks that no wrapper of the model has taken."""
    by_hand = task.exchange.reduced_by_hand
    if by_hand is not None and task.group.last:
        manual_gradient_all_reduce(by_hand)


def announce_gradients(task: StepTask) -> None:
    """To the method, then to hooks: on_backward."""
    for call in task.after_backward:
        call(task.method_step)
    task.run_hooks("on_backward")


def backward_of_loss(task: StepTask, loss: Loss) -> None:
    """As far as the loss's graph reaches, after the gradients of the group before."""
    if task.group.first:
        task.optimizer.zero_grad()
    value, weight = main_loss(loss), task.group.weight
    # A sharded model asks here whether ranks meet; DDP has asked in the forward.
    with _AS_IT_IS if task.group.last else no_sync(task.model, task.loss):
        task.precision.backward(value if weight == 1.0 else value * weight)


def optimizer_step(task: StepTask) -> None:
    """One step by `where`, when the group is complete. Fires on_update."""
    if not task.group.last:
        return
    with task.perf.optimizer_step:
        task.optimizer.schedule(task.where)
        task.optimizer.step(task.precision)
    for call in task.after_update:
        call(task.method_step)
    task.run_hooks("on_update")
    task.state.count_update()


def main_loss(loss: Loss) -> Tensor:
    return loss if isinstance(loss, Tensor) else loss["loss"]
