"""When a run is saved: every so many steps, every so many train phases, and at its end."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

import sslengine
from sslengine.checkpoint import files
from sslengine.checkpoint.options import CheckpointOptions
from sslengine.checkpoint.saver import Saver
from sslengine.checkpoint.snapshot import expect_plain
from sslengine.distributed.collectives import barrier
from sslengine.distributed.ranks import is_primary, world_size
from sslengine.hooks.events import Hook, Task, hook_states


class SaveCheckpoints(Hook):
    """Reading the losses comes first: a run whose loss is not finite stops instead of being
    saved. Collecting the state is collective; rank 0 copies it and writes it while
    training continues.
    """

    def __init__(self, folder: Path, options: CheckpointOptions) -> None:
        self.folder = folder
        self.every_phases = options.CHECKPOINT_FREQUENCY
        self.every_steps = options.CHECKPOINT_ITER_FREQUENCY
        self.saver = Saver(folder, options)
        self._due = False
        self.due = 0 if self.every_steps > 0 else math.inf
        self._saved_at = -1  # train steps made at the last save
        self._facts: dict[str, Any] = {}

    def on_start(self, task: Task) -> None:
        self._facts = {
            "world_size": world_size(),
            "config": _digest(task.config),
            "versions": {"sslengine": sslengine.__version__, "torch": torch.__version__},
        }
        self.saver.peers = task.peers
        expect_plain({"hooks": hook_states(task.hooks)})
        if is_primary():
            files.remove_leftovers(self.folder)

    def on_step(self, task: Task) -> None:
        if not task.train or self.every_steps <= 0:
            return
        ends_phase = task.progress.step == task.phase.steps  # on_phase_end sees to that
        self._due = self._due or task.iteration % self.every_steps == 0
        # Gradients of an unfinished group of batches are in no checkpoint: continue to its end.
        if self._due and task.updating and not ends_phase:
            self._due = False
            self._save(task, f"model_iteration{task.iteration}.torch")

    def on_phase_end(self, task: Task) -> None:
        if not task.train and is_primary() and self._saved_at == task.iteration:
            self.saver.add_results(_results(task))
        if task.progress.stopped:
            self._save(task, _final_name(task), _results(task))
            return
        if not task.train:
            return
        name = self.name_at_phase_end(task)
        self._due = False
        if name is not None:
            self._save(task, name, _results(task))

    def name_at_phase_end(self, task: Task) -> str | None:
        """Name the checkpoint that the end of this train phase brings; None: it brings none."""
        phase = task.phase
        if not phase.complete:  # a test comes in between: what counts is the iteration
            return f"model_iteration{task.iteration}.torch" if self._due else None
        if phase.train_index == max(each.train_index for each in task.phases):
            return _final_name(task)
        of_phases = self.every_phases > 0 and (phase.train_index + 1) % self.every_phases == 0
        if of_phases or self._due:
            return f"model_phase{phase.train_index}.torch"
        return None

    def on_end(self, task: Task) -> None:
        # A test phase came after the last save: note that it is done.
        after_the_last = not task.phases[-1].train and not task.progress.stopped
        if after_the_last and any(phase.train for phase in task.phases):
            self._save(task, _final_name(task))
        self.saver.finish()

    def on_exception(self, task: Task) -> None:
        self.saver.wait()

    def save_now(self, task: Task, name: str) -> None:
        """Save, and do not return before the file is on the disk. Collective."""
        self._save(task, name)
        self.saver.finish()
        barrier()

    def _save(self, task: Task, name: str, results: dict[str, Any] | None = None) -> None:
        self._saved_at = task.iteration
        state = checkpoint_state(task)
        expect_plain(state["classy_state_dict"])
        if is_primary() or task.peers is not None:  # shares are each rank's to write
            facts = {
                **self._facts,
                "iteration": state["iteration"],
                "train_phase": state["train_phase_idx"],
                "results": results or {},
            }
            written = [path for each in task.writers for path in each.unsynced()]
            self.saver.save(state, name, facts, name == _final_name(task), written)


def _results(task: Task) -> dict[str, Any]:
    """The metrics of the phase that has just ended, in the form of metrics.jsonl."""
    split = "train" if task.train else "test"
    results: dict[str, Any] = json.loads(json.dumps({split: task.phase_results}, default=str))
    return results


def _digest(config: Any) -> str:
    """Hash the values, not the order in which keys were written."""
    text = json.dumps(_name_keys(OmegaConf.to_container(config)), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _name_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _name_keys(each) for key, each in value.items()}
    return [_name_keys(each) for each in value] if isinstance(value, list) else value


def _final_name(task: Task) -> str:
    last = max(phase.train_index for phase in task.phases)
    if task.progress.stopped:
        last = task.phase.train_index
    return f"model_final_checkpoint_phase{last}.torch"


def checkpoint_state(task: Task) -> dict[str, Any]:
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
