"""`standard_train_step`: one input, one loss, one optimizer."""

from __future__ import annotations

from sslengine.registry import register_train_step
from sslengine.train_steps import stages
from sslengine.train_steps.samples import single_input_sample


@register_train_step("standard_train_step")
def standard_train_step(task: stages.StepTask) -> stages.StepTask:
    return take_step(task, single_input_sample)


def take_step(task: stages.StepTask, build_sample: stages.BuildSample) -> stages.StepTask:
    """The standard recipe. build_sample: makes the sample dict of a batch."""
    with stages.step_timer(task):
        with stages.compute_context(task):
            sample = stages.read_sample(task, build_sample)
            output = stages.forward(task, sample)  # fires on_forward
            loss = stages.compute_loss(task, output, sample)
        stages.reduce_loss(task, loss)  # waits for nothing
        stages.update_meters(task, output, sample)  # fires on_loss_and_meter
        if task.train:
            stages.backward(task, loss)  # fires on_backward
            stages.optimizer_step(task)  # by `where`; fires on_update
    return task
