"""The loop of every run.

    on_start
    for each phase (train, test):
        on_phase_start
        for each step:  read, forward, loss, backward, update   (train_steps/)
        on_phase_end
    on_end
                                    on any exception: on_exception, then it is raised again

The task knows the next phase and step, so a run that resumes within a phase needs no other loop.
"""

from __future__ import annotations

from sslengine.engine.task import SelfSupervisionTask


def run(task: SelfSupervisionTask) -> None:
    """Run all remaining phases of a prepared task."""
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
