"""`multi_input_train_step`: several inputs of one image, such as PIRL's image and patches.

The model gets a dict, `{"images": ..., "patches": ...}`, by the names of
DATA.TRAIN.INPUT_KEY_NAMES; MODEL.MULTI_INPUT_HEAD_MAPPING says which head takes what.
"""

from __future__ import annotations

from sslengine.registry import register_train_step
from sslengine.train_steps.samples import multi_input_sample
from sslengine.train_steps.stages import StepTask
from sslengine.train_steps.standard import take_step


@register_train_step("multi_input_train_step", "pirl_train_step")
def multi_input_train_step(task: StepTask) -> StepTask:
    return take_step(task, multi_input_sample)
