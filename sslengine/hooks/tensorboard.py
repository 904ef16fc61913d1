"""Histograms of parameters and gradients for TensorBoard. Scalars are the writer's business."""

from __future__ import annotations

from sslengine.hooks.events import Hook, TaskView
from sslengine.monitor.writers import TensorBoardWriter


class TensorBoardHistograms(Hook):
    """Every so many steps. Copies the parameters to the host, so not every step."""

    def __init__(self, every: int, parameters: bool, gradients: bool) -> None:
        self.every, self.parameters, self.gradients = every, parameters, gradients

    def on_update(self, task: TaskView) -> None:
        if task.iteration % self.every:
            return
        for writer in task.writers:
            if isinstance(writer, TensorBoardWriter):
                self._write(writer, task)

    def _write(self, writer: TensorBoardWriter, task: TaskView) -> None:
        for name, parameter in task.base_model.named_parameters():
            if self.parameters:
                writer.summary.add_histogram(f"parameters/{name}", parameter, task.iteration)  # type: ignore[no-untyped-call]
            if self.gradients and parameter.grad is not None:
                writer.summary.add_histogram(f"gradients/{name}", parameter.grad, task.iteration)  # type: ignore[no-untyped-call]
