"""When a run is saved: every so many steps, every so many train phases, and at its end."""

from __future__ import annotations

from pathlib import Path

from sslengine.checkpoint import files
from sslengine.distributed.collectives import barrier
from sslengine.distributed.ranks import is_primary
from sslengine.hooks.events import Hook, TaskView


class SaveCheckpoints(Hook):
    """The last of the hooks, so that a checkpoint holds what all others did.

    Reading the losses comes first: a run whose loss is not finite stops instead of being
    saved. Collecting the state is collective; rank 0 writes.
    """

    def __init__(self, folder: Path, every_phases: int, every_steps: int) -> None:
        self.folder, self.every_phases, self.every_steps = folder, every_phases, every_steps

    def on_step(self, task: TaskView) -> None:
        if not task.train or self.every_steps <= 0:
            return
        ends_phase = task.progress.step == task.phase.steps  # on_phase_end sees to that
        if task.iteration % self.every_steps == 0 and not ends_phase:
            self._save(task, f"model_iteration{task.iteration}.torch")

    def on_phase_end(self, task: TaskView) -> None:
        phase = task.phase
        if not task.train:
            return
        train_phases = sum(each.train for each in task.phases)
        if phase.train_index == train_phases - 1:
            self._save(task, _final_name(task))
        elif self.every_phases > 0 and (phase.train_index + 1) % self.every_phases == 0:
            self._save(task, f"model_phase{phase.train_index}.torch")

    def on_end(self, task: TaskView) -> None:
        # A test phase came after the last save: note that it is done.
        if not task.phases[-1].train and any(phase.train for phase in task.phases):
            self._save(task, _final_name(task))

    def _save(self, task: TaskView, name: str) -> None:
        task.ledger.flush()
        state = checkpoint_state(task)
        if is_primary():
            files.write(state, self.folder, name)
        barrier()


def _final_name(task: TaskView) -> str:
    last = max(phase.train_index for phase in task.phases)
    return f"model_final_checkpoint_phase{last}.torch"


def checkpoint_state(task: TaskView) -> dict[str, object]:
    """The content of a file, with VISSL's keys around the task's own state."""
    state = task.get_classy_state()
    return {
        "type": "consolidated",
        "phase_idx": state["phase_idx"],
        "train_phase_idx": state["train_phase_idx"],
        "iteration": state["progress"]["iteration"],
        "iteration_num": state["progress"]["iteration"] - 1,
        "loss": state["loss"],
        "classy_state_dict": state,
    }
