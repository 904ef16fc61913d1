"""`many_heads_train_step`: several heads on one frozen forward pass, each with its own loss.

The trunk computes its features once, without gradients; each head gets one of them. The minimised
number is the sum of the losses, so a head's gradient does not depend on the other heads. Learning
rates and weight decays of heads: OPTIMIZER.linear_eval_heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from sslengine.errors import ConfigError
from sslengine.models.build import trunk_with_heads
from sslengine.registry import register_train_step
from sslengine.train_steps.step import Sample, TrainStep

if TYPE_CHECKING:
    from sslengine.task.task import SelfSupervisionTask

NAME = "many_heads_train_step"


@register_train_step(NAME)
class ManyHeadsTrainStep(TrainStep):
    def losses(self, task: SelfSupervisionTask, output: Any, sample: Sample) -> Tensor:
        model = trunk_with_heads(task.parts.base_model, f"config.TRAINER.TRAIN_STEP_NAME={NAME}")
        first = next(model.trunk.parameters(), None)
        if first is not None and first.requires_grad:
            raise ConfigError(
                f"config.TRAINER.TRAIN_STEP_NAME: {NAME} trains heads on a frozen trunk; set "
                f"config.MODEL.FEATURE_EVAL_SETTINGS.EVAL_MODE_ON and FREEZE_TRUNK_ONLY to true."
            )
        outputs = [output] if isinstance(output, Tensor) else output
        return torch.stack([self._loss_of_head(task, each, sample) for each in outputs]).sum()

    def _loss_of_head(self, task: SelfSupervisionTask, output: Any, sample: Sample) -> Tensor:
        loss = super().losses(task, output, sample)
        return loss["loss"] if isinstance(loss, Mapping) else cast(Tensor, loss)
