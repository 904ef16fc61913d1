"""The stages of a train step. Each is timed under VISSL's name for it.

No stage waits for the device: losses, meters and timings stay there until they are read, at
LOG_FREQUENCY (monitor/store.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import reduce
from operator import add
from typing import Any, Protocol

import torch
from torch import Tensor

from sslengine.distributed.data_parallel import manual_gradient_all_reduce, no_sync
from sslengine.errors import TrainingError
from sslengine.optim.ownership import expect_gradients
from sslengine.optim.unregistered import warn_of_unregistered

Sample = dict[str, Any]
BuildSample = Callable[[Any, Sequence[str], Sequence[str]], Sample]
Loss = Tensor | Mapping[str, Tensor]


_AS_IT_IS = nullcontext()


class StepTask(Protocol):
    """The attributes of the task that steps use. Fields of `parts` and `state` are attributes of
    the task too; the stages of every step read them from `parts` and `state`, which is faster.
    """

    parts: Any
    state: Any
    method_step: Any
    train: bool
    test_only: bool
    model: torch.nn.Module
    base_model: torch.nn.Module
    loss: torch.nn.Module
    optimizer: Any
    precision: Any
    exchange: Any
    perf: Any
    group: Any
    last_batch: Any
    first_step: bool
    input_keys: Sequence[str]
    target_keys: Sequence[str]

    @property
    def where(self) -> float: ...
    def next_batch(self) -> Any: ...
    def run_hooks(self, event: str) -> None: ...


def step_timer(task: StepTask) -> AbstractContextManager[None]:
    """Time of the whole step."""
    return task.state.perf.train_step_total  # type: ignore[no-any-return]


def compute_context(task: StepTask) -> AbstractContextManager[Any]:
    """Gradients on in training, off in test phases.

    Inside it DDP does not reduce gradients if they are reduced by hand, nor for any batch of an
    accumulated group but the last, which then reduces the sum.
    """
    parts, state = task.parts, task.state
    if not state.train:
        return torch.no_grad()
    reduces = state.group.last and not parts.exchange.reduce_by_hand
    kept = _AS_IT_IS if reduces else no_sync(parts.model, parts.loss)
    if torch.is_grad_enabled():
        return kept
    stack = ExitStack()
    stack.enter_context(torch.enable_grad())
    stack.enter_context(kept)
    return stack


def read_sample(task: StepTask, build: BuildSample) -> Sample:
    """The next batch, on the device, as the sample dict of the step."""
    state = task.state
    with state.perf.read_sample:
        sample = build(task.next_batch(), state.reading.input_keys, state.reading.target_keys)
    state.last_batch.begin(sample)
    return sample


def forward(task: StepTask, sample: Sample) -> Any:
    """The model's output. Hooks may replace it: on_forward."""
    state = task.state
    with state.perf.forward:
        output = state.bound.model(sample["input"])
    return announce(task, output)


def call_model(task: StepTask, call: Callable[[torch.nn.Module], Any]) -> Any:
    """`call(model)`, in the precision of the run; ranks have the same buffers before."""
    with task.state.perf.forward:
        return task.state.bound.with_model(call)


def announce(task: StepTask, output: Any) -> Any:
    """The output as the loss gets it; a list of one is unwrapped. Fires on_forward."""
    if isinstance(output, list) and len(output) == 1:
        output = output[0]
    state = task.state
    state.last_batch.model_output = output
    if not state.calls["on_forward"]:
        return output
    task.run_hooks("on_forward")
    return state.last_batch.model_output


def call_loss(task: StepTask, output: Any, sample: Sample) -> Loss:
    """In float32 for any precision of the model: losses divide by small temperatures."""
    state = task.state
    with state.perf.loss_compute:
        return state.bound.loss(output, sample)  # type: ignore[no-any-return]


def compute_loss(task: StepTask, output: Any, sample: Sample) -> Loss:
    """What the loss gives: one number to minimise, and maybe others for the log."""
    loss = call_loss(task, output, sample)
    if isinstance(loss, Tensor) and loss.numel() == 1:
        return loss
    named = {"loss": loss} if isinstance(loss, Tensor) else loss
    if not isinstance(named, Mapping) or "loss" not in named:
        given = f"a dict of {', '.join(map(repr, named))}" if isinstance(named, Mapping) else named
        raise TrainingError(
            f"a loss must return a tensor, or a dict in which 'loss' is the one to minimise; "
            f"{type(task.loss).__name__} returned {given}."
        )
    _check_numbers(task, named)
    return loss


def _check_numbers(task: StepTask, losses: Mapping[str, Tensor]) -> None:
    for name, value in losses.items():
        if not isinstance(value, Tensor):
            raise TrainingError(
                f"a loss must be a tensor; {type(task.loss).__name__} gives as {name!r} {value!r}."
            )
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
    """Record the loss. It is averaged over ranks when it is read, at LOG_FREQUENCY."""
    state = task.state
    with state.perf.loss_all_reduce:
        batch = state.last_batch
        size, share = batch.size, batch.share
        if not state.train and _left_out(batch):
            size, share = (0 if share == 1.0 else size), 0.0  # other ranks may have samples
        record = state.storage.losses.record
        batch.loss = record(loss, state.progress.iteration, size, share, batch.indices)


def _left_out(batch: Any) -> bool:
    """Could no sample of a test batch be read? Then it holds placeholders without an index."""
    indices = batch.indices  # on the host
    return isinstance(indices, Tensor) and indices.numel() > 0 and int(indices.max()) < 0


def update_meters(task: StepTask, output: Any, sample: Sample) -> None:
    """Meters accumulate on the device; None is nothing to measure. Fires on_loss_and_meter."""
    state = task.state
    if (
        state.active_meters
        and output is not None
        and (state.train or not _left_out(state.last_batch))
    ):
        with state.perf.meters_update:
            for meter in state.active_meters:
                meter.update(output, sample["target"])
    if state.calls["on_loss_and_meter"]:
        task.run_hooks("on_loss_and_meter")


def backward(task: StepTask, loss: Loss) -> None:
    """Gradients of this batch's share of its group. Fires on_backward."""
    with task.state.perf.backward:
        backward_of_loss(task, loss)
        if task.parts.exchange.reduced_by_hand is not None:
            reduce_gradients(task)
    announce_gradients(task)


def backward_of_each(task: StepTask, losses: Mapping[str, Tensor]) -> None:
    """Each optimizer's gradients, by the losses that it follows. Fires on_backward."""
    with task.perf.backward:
        if task.group.first:
            task.optimizer.zero_grad()
        _expect_registered(task, *(losses[name] for name in task.optimizer.losses))
        task.optimizer.backward(task.precision, losses, task.group.weight)
        task.optimizer.finish_backward(over_ranks=task.exchange.reduce_by_hand and task.group.last)
    announce_gradients(task)


def reduce_gradients(task: StepTask) -> None:
    """At the end of a group: average over ranks the gradients that DDP does not reduce."""
    by_hand = task.exchange.reduced_by_hand
    if by_hand is not None and task.group.last:
        manual_gradient_all_reduce(by_hand)


def announce_gradients(task: StepTask) -> None:
    """Call the method's after_backward, then fire on_backward."""
    for call in task.parts.after_backward:
        call(task.method_step)
    if task.state.calls["on_backward"]:
        task.run_hooks("on_backward")


def backward_of_loss(task: StepTask, loss: Loss) -> None:
    """Add the gradients of the loss to those of the group's earlier batches."""
    parts, group = task.parts, task.state.group
    if group.first:
        parts.optimizer.zero_grad()
    _expect_registered(task, main_loss(loss))
    if not main_loss(loss).requires_grad:
        raise TrainingError(
            "the loss has no gradient: nothing that is trained leads to it. Is a `detach()` or a "
            "`torch.no_grad()` in the way, or is all frozen?"
        )
    value = main_loss(loss) if group.weight == 1.0 else main_loss(loss) * group.weight
    if group.last:
        parts.precision.backward(value)
        return
    with no_sync(parts.model, parts.loss):  # of a sharded model: DDP has asked in the forward
        parts.precision.backward(value)


def _expect_registered(task: StepTask, *losses: Tensor) -> None:
    """Once, in the first step."""
    parts = task.parts
    if task.first_step and parts.peers is None:  # those are gathered for each use
        warn_of_unregistered(losses, (*parts.model.parameters(), *parts.loss.parameters()))


def optimizer_step(task: StepTask) -> None:
    """One step by `where`, when the group is complete. Fires on_update."""
    parts, state = task.parts, task.state
    if not state.group.last:
        return
    if not state.progress.num_updates:
        expect_gradients(parts.optimizer)
    with state.perf.optimizer_step:
        parts.optimizer.schedule(parts.plan.where(state.progress))
        parts.optimizer.step(parts.precision)
    for call in parts.after_update:
        call(task.method_step)
    if state.calls["on_update"]:
        task.run_hooks("on_update")
    state.count_update()


def main_loss(loss: Loss) -> Tensor:
    return loss if isinstance(loss, Tensor) else loss["loss"]
