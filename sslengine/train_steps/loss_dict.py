"""`loss_dict_train_step`: the model takes the batch and returns its losses.

    losses = model({"data": images, "label": targets, ...})     training: {"name": scalar, ...}
    predictions = model(batch)                                  test phases, in eval mode

The losses are added up; each is logged under its name, as the mean over ranks. A model that
returns scalars in test phases too has them recorded there; anything else goes to the meters.
"""

from __future__ import annotations

from sslengine.registry import register_train_step
from sslengine.train_steps import stages
from sslengine.train_steps.model_losses import (
    are_losses,
    model_gives_losses,
    sum_of_losses,
    whole_batch_sample,
)


@register_train_step("loss_dict_train_step")
@model_gives_losses
def loss_dict_train_step(task: stages.StepTask) -> stages.StepTask:
    with stages.step_timer(task):
        with stages.compute_context(task):
            sample = stages.read_sample(task, whole_batch_sample)
            output = task.precision.as_full(stages.forward(task, sample))  # fires on_forward
            gives_losses = task.train or are_losses(output)
            if gives_losses:
                loss = sum_of_losses(output, type(task.base_model).__name__)
        if gives_losses:
            stages.reduce_loss(task, loss)
        stages.update_meters(task, None if gives_losses else output, sample)
        if task.train:
            stages.backward(task, loss)  # fires on_backward
            stages.optimizer_step(task)  # by `where`; fires on_update
    return task
