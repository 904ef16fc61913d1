"""A plugin for test_real_trackers: it is copied into the folder."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from sslengine.hooks.events import Hook


class KillOnce(Hook):
    """After a step; if it waits, when the tracker has noted that step."""

    def __init__(self, after: int, package: str, waits: bool) -> None:
        self.after, self.package, self.waits = after, package, waits

    def on_start(self, task: Any) -> None:
        self.mark = Path(f"{task.run_dir}_killed")
        task.storage.put_image("first", np.zeros((4, 6, 3), np.uint8))
        task.storage.put_histogram("weights", next(task.learner.parameters()))

    def on_forward(self, task: Any) -> None:
        if task.iteration < self.after or self.mark.exists() or not task.train:
            return
        note = Path(task.run_dir) / "trackers" / f"{self.package}.sent"
        noted = self.after - (self.package == "wandb")  # which keeps a step until the next
        while self.waits and not (note.exists() and f'"train": {noted}' in note.read_text()):
            time.sleep(0.1)
        task.services.checkpoints.saver.wait()
        self.mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
