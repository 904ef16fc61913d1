"""`model_train_step`: the model owns its step, as mmengine's models do.

    data = model.data_preprocessor(data, training)     if it has one
    losses = model(**data, mode="loss")                a dict's values as keywords
             model(*data, mode="loss")                 a list's or tuple's as arguments
    total, log_vars = model.parse_losses(losses)       if it has it; else the sum of all whose
                                                       names contain "loss", the rest is logged
    model.val_step(data), model.test_step(data)        in test phases, and where only tests run;
                                                       without them: model(..., mode="predict")

The loss call may return losses, (losses, predictions) or (losses, predictions, masks): hooks
find the latter two as `task.last_batch.vis_preds` and `vis_masks`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sslengine.monitor.loss_ledger import MAIN
from sslengine.registry import register_train_step
from sslengine.train_steps import stages
from sslengine.train_steps.model_losses import are_losses, model_gives_losses, whole_batch_sample
from sslengine.train_steps.own_step import call, named_arguments, parse, preprocessed


@dataclass
class ModelStepOptions:
    # The model's arguments by the names that the batch has for them: {imgs: data, labels: label}.
    # Empty: the names of INPUT_KEY_NAMES and TARGET_KEY_NAMES.
    ARGUMENTS: dict[str, str] = field(default_factory=dict)


@register_train_step("model_train_step", options=ModelStepOptions)
@model_gives_losses
class ModelTrainStep:
    def __init__(self, options: ModelStepOptions) -> None:
        self.arguments = options.ARGUMENTS

    def __call__(self, task: stages.StepTask) -> stages.StepTask:
        with stages.step_timer(task):
            with stages.compute_context(task):
                sample = stages.read_sample(task, whole_batch_sample)
                data = self._data(task, sample)
                loss, predictions = self._trained(task, data) if task.train else _tested(task, data)
            if loss is not None:
                stages.reduce_loss(task, loss)
            stages.update_meters(task, predictions, sample)  # fires on_loss_and_meter
            if task.train:
                stages.backward(task, loss)  # fires on_backward
                stages.optimizer_step(task)  # by `where`; fires on_update
        return task

    def _data(self, task: stages.StepTask, sample: stages.Sample) -> Any:
        batch = sample["input"]
        if sample["target"] is None and "data_idx" not in sample:
            return batch  # the user's collator made it as the model takes it
        own = {name: name for name in (*task.input_keys, *task.target_keys)}
        return named_arguments(batch, self.arguments or own)

    def _trained(self, task: stages.StepTask, data: Any) -> tuple[Any, Any]:
        def compute(model: Any) -> Any:
            return call(model, preprocessed(task.base_model, data, training=True), "loss")

        returned = stages.call_model(task, compute)
        given = returned if isinstance(returned, tuple) else (returned,)
        losses, predictions, masks = (*given, None, None)[:3]
        task.last_batch.vis_preds, task.last_batch.vis_masks = predictions, masks
        losses = stages.announce(task, task.precision.as_full(losses))  # fires on_forward
        with task.perf.loss_compute:
            return parse(task.base_model, losses), None


def _tested(task: stages.StepTask, data: Any) -> tuple[Any, Any]:
    """(losses, None) or (None, predictions): whichever the model gives."""
    model: Any = task.base_model
    own = getattr(model, "test_step" if task.test_only else "val_step", None)

    def compute(_: Any) -> Any:
        if own is not None:
            return own(data)
        return call(model, preprocessed(model, data, training=False), "predict")

    output = stages.announce(task, task.precision.as_full(stages.call_model(task, compute)))
    if not are_losses(output):
        return None, output
    return parse(model, output if isinstance(output, Mapping) else {MAIN: output}), None
