"""`many_heads_train_step`: several heads on one frozen forward pass, each with its own loss.

The trunk computes its features once, without gradients; each head gets one of them. The minimised
number is the sum of the losses, so a head's gradient does not depend on the other heads. Learning
rates and weight decays of heads: OPTIMIZER.linear_eval_heads.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sslengine.errors import ConfigError
from sslengine.models.build import trunk_with_heads
from sslengine.registry import register_train_step
from sslengine.train_steps import stages
from sslengine.train_steps.samples import single_input_sample

NAME = "many_heads_train_step"


@register_train_step(NAME)
def many_heads_train_step(task: stages.StepTask) -> stages.StepTask:
    with stages.step_timer(task):
        with stages.compute_context(task):
            sample = stages.read_sample(task, single_input_sample)
            outputs = stages.forward(task, sample)  # fires on_forward
            loss = _sum_of_losses(task, outputs, sample)
        stages.reduce_loss(task, loss)
        stages.update_meters(task, outputs, sample)  # fires on_loss_and_meter
        if task.train:
            stages.backward(task, loss)  # fires on_backward
            stages.optimizer_step(task)  # by `where`; fires on_update
    return task


def _sum_of_losses(
    task: stages.StepTask, outputs: Tensor | list[Tensor], sample: stages.Sample
) -> Tensor:
    _expect_a_frozen_trunk(task)
    heads = [outputs] if isinstance(outputs, Tensor) else outputs
    return torch.stack([_number(stages.compute_loss(task, each, sample)) for each in heads]).sum()


def _number(loss: stages.Loss) -> Tensor:
    return loss["loss"] if isinstance(loss, Mapping) else loss


def _expect_a_frozen_trunk(task: stages.StepTask) -> None:
    model = trunk_with_heads(task.base_model, f"config.TRAINER.TRAIN_STEP_NAME={NAME}")
    first = next(model.trunk.parameters(), None)
    if first is not None and first.requires_grad:
        raise ConfigError(
            f"config.TRAINER.TRAIN_STEP_NAME: {NAME} trains heads on a frozen trunk; set "
            f"config.MODEL.FEATURE_EVAL_SETTINGS.EVAL_MODE_ON and FREEZE_TRUNK_ONLY to true."
        )
