"""The position in a run: the argument `step` of a method's `forward` and callbacks.

    step.iteration      train steps done            step.train      False: change no state
    step.num_updates    optimizer steps done        step.updating   True: accumulation ends here
    step.where          progress, from 0 to 1       step.epoch      from 0
    step.phase          number of earlier train phases
    step.put("temperature", value)                  a metric; tensors stay on the device

Without a task, in a test or a notebook: `Step.alone(iteration=3)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

from sslengine.precision import Precision


class Step:
    """Reads each value from the task when it is used; one object per task."""

    __slots__ = ("_task",)

    def __init__(self, task: Any) -> None:
        self._task = task

    @classmethod
    def alone(
        cls,
        iteration: int = 0,
        num_updates: int | None = None,
        where: float = 0.0,
        epoch: int = 0,
        phase: int = 0,
        train: bool = True,
        updating: bool = True,
        precision: Precision | None = None,
        training_set: Iterable[Mapping[str, Any]] = (),
    ) -> Step:
        """A step without a task; its metrics are in `step.metrics`.

        num_updates: as many as `iteration`, if nothing is accumulated.
        """
        updates = iteration if num_updates is None else num_updates
        progress = SimpleNamespace(iteration=iteration, num_updates=updates)
        phase_of_run = SimpleNamespace(epoch=epoch, train_index=phase)
        task = SimpleNamespace(
            progress=progress, where=where, phase=phase_of_run, train=train, updating=updating,
            precision=precision or Precision(), storage=_Kept(),
            unused_epoch=lambda: iter(training_set),
        )  # fmt: skip
        return cls(task)

    @property
    def iteration(self) -> int:
        return self._task.progress.iteration  # type: ignore[no-any-return]

    @property
    def num_updates(self) -> int:
        return self._task.progress.num_updates  # type: ignore[no-any-return]

    @property
    def where(self) -> float:
        return self._task.where  # type: ignore[no-any-return]

    @property
    def epoch(self) -> int:
        return self._task.phase.epoch  # type: ignore[no-any-return]

    @property
    def phase(self) -> int:
        return self._task.phase.train_index  # type: ignore[no-any-return]

    @property
    def train(self) -> bool:
        return self._task.train  # type: ignore[no-any-return]

    @property
    def updating(self) -> bool:
        return self._task.updating  # type: ignore[no-any-return]

    @property
    def metrics(self) -> Mapping[str, Any]:
        """Metrics that were put and are not written yet."""
        return self._task.storage.latest()  # type: ignore[no-any-return]

    def put(self, name: str, value: Any) -> None:
        self._task.storage.put_scalar(name, value)

    def training_set(self) -> Iterator[Mapping[str, Any]]:
        """This rank's batches of an epoch that training does not use; only in `before_phase`."""
        return self._task.unused_epoch()  # type: ignore[no-any-return]

    def autocast(self) -> AbstractContextManager[Any]:
        """The run's autocast context for its model: `with step.autocast(): ...`"""
        return self._task.precision.autocast()  # type: ignore[no-any-return]

    def full(self, output: Any) -> Any:
        """Convert half-precision tensors to float32, as in the `output` of `forward`."""
        return self._task.precision.as_full(output)


class _Kept:
    """Replaces a task's storage."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def put_scalar(self, name: str, value: Any) -> None:
        self._values[name] = value

    def latest(self) -> Mapping[str, Any]:
        return self._values
