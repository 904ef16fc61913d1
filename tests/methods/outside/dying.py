"""A hook that kills its process once, as a power cut would."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from sslengine.hooks.events import Hook


class DieOnce(Hook):
    """In step 5, when a checkpoint is on the disk: it is written in the background."""

    def on_step(self, task: Any) -> None:
        mark = task.run_dir / "died"
        if task.iteration == 5 and not mark.exists():
            mark.touch()
            while not (task.run_dir / "checkpoints" / "checkpoint.torch").exists():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
