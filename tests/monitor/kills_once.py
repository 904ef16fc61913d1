"""A plugin for test_real_trackers: it is copied into the folder."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np

from sslengine.hooks.events import Hook


class EndOnce(Hook):
    """Ends the process after a step as a power cut does, or by an error."""

    def __init__(self, after: int, fails: bool = False) -> None:
        self.after, self.fails = after, fails

    def on_start(self, task: Any) -> None:
        self.mark = Path(f"{task.run_dir}_ended")
        task.storage.put_histogram("weights", next(task.learner.parameters()))

    def on_forward(self, task: Any) -> None:
        if not task.train or task.iteration < self.after:
            return
        if self.mark.exists():
            task.storage.put_image("first", np.zeros((4, 6, 3), np.uint8))
            return
        task.services.checkpoints.saver.wait()
        self.mark.touch()
        if self.fails:
            raise RuntimeError("as if out of memory")
        os.kill(os.getpid(), signal.SIGKILL)
