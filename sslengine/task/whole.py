"""Does a train step train? One that leaves a stage out would reach the end of the run untrained."""

from __future__ import annotations

from typing import Any

from sslengine.errors import TrainingError


def expect_whole(task: Any) -> None:
    """Raise TrainingError if the train step recorded no loss, or did not make the first update."""
    state, left_out = task.state, ""
    if state.last_batch.loss is None:
        left_out = "recorded no loss: call stages.reduce_loss(task, loss)"
    elif state.group.last and not state.progress.num_updates:
        left_out = "made no optimizer step: call stages.optimizer_step(task) in train phases"
    if left_out:
        name = task.config.TRAINER.TRAIN_STEP_NAME
        raise TrainingError(f"config.TRAINER.TRAIN_STEP_NAME: {name} {left_out}.")
