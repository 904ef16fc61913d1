"""`METERS.model_output_mask`: test phases never predict a class that no label of TEST has."""

from __future__ import annotations

import torch

from sslengine.hooks.events import Hook, TaskView
from sslengine.meters.targets import mask_absent, present_classes


class MaskAbsentClasses(Hook):
    """Loss and meters get the masked output, as in VISSL."""

    def on_phase_start(self, task: TaskView) -> None:
        if not task.train:
            labels = map(present_classes, task.test_feed.dataset.labels)
            self._present = torch.cat([*labels])

    def on_forward(self, task: TaskView) -> None:
        if not task.train:
            batch = task.last_batch
            batch.model_output = mask_absent(batch.model_output, self._present)
