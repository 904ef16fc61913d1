"""Histograms of parameters and gradients for TensorBoard. The writer logs the scalars."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from sslengine.distributed.sharding import whole
from sslengine.hooks.events import Hook, TaskView
from sslengine.monitor.writers import TensorBoardWriter


class TensorBoardHistograms(Hook):
    """Write them every so many steps: each time the parameters are copied to the host.

    A sharded run gathers them one by one.
    """

    def __init__(self, every: int, parameters: bool, gradients: bool) -> None:
        self.every, self.parameters, self.gradients = every, parameters, gradients

    def on_update(self, task: TaskView) -> None:
        if task.iteration % self.every:
            return
        writers = [each for each in task.writers if isinstance(each, TensorBoardWriter)]
        if not (writers or task.peers):  # all ranks of a sharded run have to gather
            return
        for name, parameter in task.learner.named_parameters():
            if self.parameters:
                self._write(writers, f"parameters/{name}", whole(parameter), task)
            if self.gradients and parameter.grad is not None:
                self._write(writers, f"gradients/{name}", whole(parameter.grad), task)

    def _write(
        self, writers: list[TensorBoardWriter], name: str, values: Tensor, task: TaskView
    ) -> None:
        for writer in writers:
            add = partial(writer.summary.add_histogram, name, values, task.iteration)
            writer.attempt(add)
