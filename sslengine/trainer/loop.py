"""The loop of every run.

    on_start
    for each phase (train, test):
        on_phase_start
        for each step:  read, forward, loss, backward, update   (train_steps/)
        on_phase_end
    on_end
                                    anything raised: on_exception, then raised again

The task knows which phase and which step come next, so a resumed run enters this loop
in the middle of a phase as any other enters it at the start.
"""

from __future__ import annotations

from typing import Protocol


class Runnable(Protocol):
    """What the loop needs of a task."""

    def on_start(self) -> None: ...
    def on_phase_start(self) -> None: ...
    def on_phase_end(self) -> None: ...
    def on_end(self) -> None: ...
    def on_exception(self, error: BaseException) -> None: ...
    def done_training(self) -> bool: ...
    def start_phase(self) -> None: ...
    def steps_left(self) -> bool: ...
    def step(self) -> None: ...


def run(task: Runnable) -> None:
    """All that is left of a prepared task."""
    try:
        task.on_start()
        while not task.done_training():
            task.start_phase()
            task.on_phase_start()
            while task.steps_left():
                task.step()
            task.on_phase_end()
        task.on_end()
    except BaseException as error:
        task.on_exception(error)
        raise
