"""A hook that kills its process once, as a power cut would."""

from __future__ import annotations

import os
import signal
from typing import Any

from sslengine.hooks.events import Hook


class DieOnce(Hook):
    def on_step(self, task: Any) -> None:
        mark = task.run_dir / "died"
        if task.iteration == 5 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
