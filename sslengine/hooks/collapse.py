"""Signs of collapse, the failure that a self-supervised loss does not show.

A network that gives every image the same features, or features of few dimensions, can have a
very low loss. At the end of each train phase these metrics are computed from its last batch:

    projection_std     spread of the unit-length outputs over images: 0 when all are alike
    projection_rank    RankMe of the outputs: how many dimensions they fill
    trunk_rank         RankMe of the trunk's final feature

They cover this process's part of one batch, so RankMe is at most its number of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from sslengine.evaluation.spread import feature_std, rankme
from sslengine.hooks.events import Hook, TaskView


class LogCollapse(Hook):
    """`HOOKS.COLLAPSE_SIGNS`: adds to `task.phase_results`.

    Cost: two singular value decompositions per phase. The trunk's output is recorded in the
    last step of the phase only.
    """

    def __init__(self) -> None:
        self._handle: Any = None
        self._trunk: Tensor | None = None
        self._signs: dict[str, float] = {}

    def on_phase_start(self, task: TaskView) -> None:
        self._signs = {}
        self._record_trunk_before_last_step(task)

    def on_step(self, task: TaskView) -> None:
        left = task.phase.steps - task.progress.step
        if left > 1 or not task.train:
            return
        if left == 0:
            self._signs = self._compute(task)
        else:
            self._record_trunk_before_last_step(task)

    def on_phase_end(self, task: TaskView) -> None:
        if task.train:
            task.phase_results.update(self._signs)

    def on_exception(self, task: TaskView) -> None:
        self._stop_recording()

    def _record_trunk_before_last_step(self, task: TaskView) -> None:
        trunk = getattr(task.base_model, "trunk", None)
        if task.train and task.progress.step == task.phase.steps - 1 and trunk is not None:
            self._handle = trunk.register_forward_hook(self._keep)

    def _keep(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if self._trunk is None:  # the first crop size, if there are several
            self._trunk = first_tensor(output)

    def _stop_recording(self) -> None:
        if self._handle is not None:
            self._handle.remove()
        self._handle, self._trunk = None, None

    def _compute(self, task: TaskView) -> dict[str, float]:
        signs: dict[str, float] = {}
        projection = first_tensor(task.last_batch.model_output)
        if projection is not None and len(projection) > 1:
            signs["projection_std"] = feature_std(projection).item()
            signs["projection_rank"] = rankme(projection).item()
        if self._trunk is not None and len(self._trunk) > 1:
            signs["trunk_rank"] = rankme(self._trunk).item()
        self._stop_recording()
        return signs


def first_tensor(output: Any) -> Tensor | None:
    """The first tensor in a model's output, flattened to rows; None if there is none."""
    if isinstance(output, Tensor):
        rows = output.detach()
        return rows.flatten(1).float() if rows.ndim > 1 else None
    if isinstance(output, Mapping):
        output = list(output.values())
    if isinstance(output, Sequence) and output:
        return first_tensor(output[0])
    return None
