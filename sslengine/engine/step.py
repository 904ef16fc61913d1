"""A train step, from top to bottom: what happens to one batch. A named step overrides a stage.

    read        the next batch, on the device, as the sample dict of the step
    forward     the model's output; hooks may replace it: on_forward
    losses      what the loss makes of it, in float32
    record      the loss is recorded; it is averaged over ranks when it is read, at LOG_FREQUENCY
    measure     meters; on_loss_and_meter
    backward    gradients; the method's after_backward; on_backward
    update      the optimizer by `where`; the method's after_update; on_update

Each stage is timed under VISSL's name for it. None waits for the device: losses, meters and timings
stay there until they are read (monitor/store.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sslengine.distributed.data_parallel import broadcast_all, manual_gradient_all_reduce, no_sync
from sslengine.errors import ConfigError, DataError, TrainingError, nearest
from sslengine.methods.whole import Batch
from sslengine.models.build import trunk_with_heads
from sslengine.optim.learner import expect_gradients, warn_of_unregistered
from sslengine.registry import register_train_step

if TYPE_CHECKING:
    from sslengine.engine.task import SelfSupervisionTask

WHERE, MANY_HEADS = "config.TRAINER.TRAIN_STEP_NAME", "many_heads_train_step"
_COLLATOR = "config.DATA.TRAIN.COLLATE_FUNCTION"
Sample = dict[str, Any]
Loss = Tensor | Mapping[str, Tensor]
# A function of a batch, and the names of its inputs and targets.
MakeSample = Callable[[Any, Sequence[str], Sequence[str]], Sample]


# ---- from the loader's batch to the sample


def multi_input_sample(batch: Any, inputs: Sequence[str], targets: Sequence[str]) -> Sample:
    """Make a sample whose inputs are nested under their names, also if there is one."""
    return single_input_sample(batch, inputs, targets, nested=True)


def single_input_sample(
    batch: Any, inputs: Sequence[str], targets: Sequence[str], nested: bool = False
) -> Sample:
    """Make the sample of a step from the loader's batch, as VISSL's standard step does.

    A batch is a dict; each key holds a list over data sources. Steps take one source:

        one input key       sample["input"] = batch["data"][0]
        several             sample["input"] = {"images": ..., "patches": ...}
        one target key      sample["target"] = batch["label"][0]
        several             sample["target"] = {...}
        all other keys      carried along, each without its list: sample["data_idx"], ...
    """
    if not isinstance(batch, dict):
        raise DataError(f"{_COLLATOR}: expected a dict of lists, it made {type(batch).__name__}.")
    sample: Sample = {}
    for key, values in batch.items():
        if not isinstance(values, list) or len(values) != 1:
            raise DataError(
                f"{_COLLATOR}: batch[{key!r}] must be a list of one data source: give DATA_SOURCES "
                f"one entry, or views of one image to a collator of views (simclr_collator)."
            )
        sample[key] = values[0]
    try:
        if nested or len(inputs) > 1:
            sample["input"] = {key: sample.pop(key) for key in inputs}
        else:
            sample["input"] = sample.pop(inputs[0])
        if len(targets) == 1:
            sample["target"] = sample.pop(targets[0])
        else:
            sample["target"] = {key: sample.pop(key) for key in targets}
    except KeyError as error:
        key = error.args[0]
        named_by = "INPUT_KEY_NAMES" if key in inputs else "TARGET_KEY_NAMES"
        raise DataError(
            f"config.DATA.TRAIN.{named_by}: the batch has no {key!r}. {nearest(key, batch)}"
        ) from None
    return sample


@register_train_step("standard_train_step")
class TrainStep:
    """One input, one loss, one optimizer."""

    # Does the model give its losses, so that config.LOSS names none?
    model_gives_losses = False
    # Does the model get a batch in parts?
    in_chunks = False
    # Are there several backward passes, of which DDP's hooks would follow the first?
    reduces_by_hand = False

    def __call__(self, task: SelfSupervisionTask) -> SelfSupervisionTask:
        parts, last = task.parts, task.state.last_batch
        with task.state.perf.train_step_total:
            with self.context(task):
                sample = self.read(task)
                if parts.model is parts.base_model:
                    loss = self.compute(task, sample)
                else:
                    loss = parts.model(compute=partial(self.compute, task, sample))
            if loss is not None:
                self.record(task, loss)
            self.measure(task, last.model_output, sample)
            if task.state.train and loss is not None:
                self.backward(task, loss)
                self.update(task)
        return task

    def context(self, task: SelfSupervisionTask) -> AbstractContextManager[Any]:
        """Turn gradients off in test phases.

        In training DDP does not reduce gradients if they are reduced by hand, nor for any batch of
        an accumulated group but the last, which then reduces the sum.
        """
        parts, state = task.parts, task.state
        if not state.train:
            return torch.no_grad()
        reduces = state.group.last and not parts.reduction.by_hand
        return nullcontext() if reduces else no_sync(parts.model, parts.loss)

    def compute(self, task: SelfSupervisionTask, sample: Sample) -> Loss | None:
        """Compute the loss: what DDP wraps, so that it reduces the method's gradients too."""
        loss = self.losses(task, self.forward(task, sample), sample)
        preservation = getattr(task.parts.loss, "preservation", None)
        if preservation is not None and loss is not None:
            batch = task.state.last_batch
            images = round(batch.size * batch.share)
            loss = preservation(loss, sample["input"], images, task.method_step)
        if isinstance(loss, Tensor) and loss.numel() == 1:
            return loss
        if loss is None and not task.state.train:
            return None
        name = type(task.parts.loss).__name__
        losses = expect_numbers(loss, name)
        if "loss" not in losses:
            raise TrainingError(f"{name} gives {[*losses]}: 'loss' must be the one to minimise.")
        return losses

    def read(self, task: SelfSupervisionTask) -> Sample:
        """Take the next batch, on the device."""
        state = task.state
        last, keys = state.last_batch, state.reading
        assert keys is not None
        with state.perf.read_sample:
            sample = self.make_sample(state.next_batch(), keys.input_keys, keys.target_keys)
        last.sample, last.target, last.indices = sample, sample["target"], sample.get("data_idx")
        return sample

    # Turns a batch of the loader, a dict of lists over sources, into the sample dict.
    make_sample: MakeSample = staticmethod(single_input_sample)

    def forward(self, task: SelfSupervisionTask, sample: Sample) -> Any:
        """Call the model in the precision of the run; unwrap an output that is a list of one."""
        parts, state = task.parts, task.state
        if parts.whole and not self.model_gives_losses:  # it calls its networks itself
            return None
        with state.perf.forward, parts.precision.autocast():
            if state.train and parts.reduction.broadcasts_by_hand:  # ranks have the same
                broadcast_all(parts.base_model.buffers())
            output = self.apply(task, sample)
        if isinstance(output, list) and len(output) == 1:
            output = output[0]
        state.last_batch.model_output = output
        if state.calls["on_forward"]:
            task.run_hooks("on_forward")
        return state.last_batch.model_output

    def apply(self, task: SelfSupervisionTask, sample: Sample) -> Any:
        """Compute the model's output."""
        return task.parts.base_model(sample["input"])

    def losses(self, task: SelfSupervisionTask, output: Any, sample: Sample) -> Any:
        """Call the method, or a plain loss of output and target. None: nothing is measured.

        It gives one number to minimise, or a dict of it and others for the log. It is computed in
        float32 for any precision of the model: losses divide by small temperatures.
        """
        parts = task.parts
        with task.state.perf.loss_compute:
            if parts.whole:
                return parts.loss(Batch(sample), task.method_step)
            output = parts.precision.as_full(output)
            if parts.loss_takes_sample:
                return parts.loss(output, sample, task.method_step)
            return parts.loss(output, sample["target"])

    def record(self, task: SelfSupervisionTask, loss: Loss) -> None:
        """Record the loss with the share of images that this rank has."""
        state, batch = task.state, task.state.last_batch
        with state.perf.loss_all_reduce:
            size, share = batch.size, batch.share
            if not state.train and _is_left_out(batch):
                size, share = (0 if share == 1.0 else size), 0.0  # other ranks may have samples
            record = state.storage.record
            batch.loss = record(loss, state.progress.iteration, size, share, batch.indices)

    def measure(self, task: SelfSupervisionTask, output: Any, sample: Sample) -> None:
        """Update meters, which accumulate on the device; None is nothing to measure."""
        state = task.state
        meters = state.active_meters
        if meters and output is not None and (state.train or not _is_left_out(state.last_batch)):
            with state.perf.meters_update:
                for meter in meters:
                    meter.update(output, sample["target"])
        if state.calls["on_loss_and_meter"]:
            task.run_hooks("on_loss_and_meter")

    def backward(self, task: SelfSupervisionTask, loss: Loss) -> None:
        """Add the gradients of this batch's share of its group."""
        parts, state = task.parts, task.state
        with state.perf.backward:
            self.differentiate(task, loss)
            if parts.reduction.by_hand and state.group.last:
                self.reduce(task)
        for call in parts.after_backward:
            call(task.method_step)
        if state.calls["on_backward"]:
            task.run_hooks("on_backward")
        for hook in state.dated_backward:
            if state.steps + 1 >= hook.due:  # this step is not counted yet
                hook.on_backward(task)

    def differentiate(self, task: SelfSupervisionTask, loss: Loss) -> None:
        """Compute gradients; a group's first batch begins from none."""
        parts, group = task.parts, task.state.group
        value = loss if isinstance(loss, Tensor) else loss["loss"]
        if group.first:
            parts.optimizer.zero_grad()
        if task.first_step:
            expect_registered(task, value)
        if not value.requires_grad:
            raise TrainingError(
                "the loss has no gradient: is a `detach()` in the way, or is all frozen?"
            )
        if group.weight != 1.0:
            value = value * group.weight
        if group.last:
            parts.precision.backward(value)
            return
        with no_sync(parts.model, parts.loss):  # of a sharded model: DDP has asked in the forward
            parts.precision.backward(value)

    def reduce(self, task: SelfSupervisionTask) -> None:
        """Average over ranks the gradients that DDP does not reduce."""
        manual_gradient_all_reduce(task.parts.learner)

    def update(self, task: SelfSupervisionTask) -> None:
        """Step the optimizer, when the group is complete."""
        parts, state = task.parts, task.state
        if not state.group.last:
            return
        if not state.progress.num_updates:
            expect_gradients(parts.optimizer)
        with state.perf.optimizer_step:
            parts.optimizer.schedule(state.progress.num_updates / parts.plan.total_updates)
            parts.optimizer.step(parts.precision)
        for call in parts.after_update:
            call(task.method_step)
        if state.calls["on_update"]:
            task.run_hooks("on_update")
        state.count_update()


@register_train_step("multi_input_train_step", "pirl_train_step")
class MultiInputTrainStep(TrainStep):
    """Several inputs of one image, such as PIRL's image and patches.

    The model gets a dict, `{"images": ..., "patches": ...}`, by the names of
    DATA.TRAIN.INPUT_KEY_NAMES; MODEL.MULTI_INPUT_HEAD_MAPPING says which head takes what.
    """

    make_sample: MakeSample = staticmethod(multi_input_sample)


@register_train_step(MANY_HEADS)
class ManyHeadsTrainStep(TrainStep):
    """Several heads on one forward pass of a frozen trunk, each with its own loss.

    The minimised number is their sum, so a head's gradient does not depend on the other heads.
    Learning rates and weight decays of heads: OPTIMIZER.linear_eval_heads.
    """

    def losses(self, task: SelfSupervisionTask, output: Any, sample: Sample) -> Tensor:
        model = trunk_with_heads(task.parts.base_model, f"{WHERE}={MANY_HEADS}")
        first = next(model.trunk.parameters(), None)
        if first is not None and first.requires_grad:
            raise ConfigError(
                f"{WHERE}: {MANY_HEADS} trains heads on a frozen trunk; set "
                f"config.MODEL.FEATURE_EVAL_SETTINGS.EVAL_MODE_ON and FREEZE_TRUNK_ONLY to true."
            )
        outputs = [output] if isinstance(output, Tensor) else output
        name = type(task.parts.loss).__name__
        call = super().losses
        losses = [expect_numbers(call(task, each, sample), name)["loss"] for each in outputs]
        return torch.stack(losses).sum()


def expect_numbers(given: Any, name: str) -> dict[str, Tensor]:
    """Return the losses that `name` gives, by their names; raise TrainingError if one is none."""
    losses = dict(given) if isinstance(given, Mapping) else {"loss": given}
    for key, value in losses.items():
        if not isinstance(value, Tensor) or value.numel() != 1:
            given = tuple(value.shape) if isinstance(value, Tensor) else value
            raise TrainingError(
                f"a loss must be a tensor of one number; {name} gives {key}: {given!r}."
            )
    return losses


def expect_registered(task: SelfSupervisionTask, *losses: Tensor) -> None:
    """Warn of what these losses lead to and no module has; call it in the first step."""
    parts = task.parts
    if parts.peers is None:  # those are gathered for each use
        warn_of_unregistered(losses, (*parts.base_model.parameters(), *parts.loss.parameters()))


def _is_left_out(batch: Any) -> bool:
    """Could no sample of a test batch be read? Then it holds placeholders without an index."""
    indices = batch.indices  # on the host
    return isinstance(indices, Tensor) and indices.numel() > 0 and int(indices.max()) < 0
