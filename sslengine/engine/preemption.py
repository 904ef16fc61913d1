"""Save and end the run when the machine is taken away.

    SIGTERM, SIGUSR1, SIGUSR2    the step is finished, the run is saved, the command ends with
                                 status 75: the same command resumes from there
    SIGINT (Ctrl-C)              the same, in a run from the command line
    a second one                 ends the process at once; what was saved stays. Below torch's
                                 elastic agent, which passes on what it gets: a third one

All ranks save after the same step, whichever of them got the signal.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import threading
import time
from types import FrameType
from typing import Any

from sslengine.distributed.agreement import Agreement
from sslengine.distributed.ranks import is_primary, world_size
from sslengine.engine.checkpointing import SaveCheckpoints
from sslengine.errors import Preempted
from sslengine.hooks.events import Hook, Task

log = logging.getLogger("sslengine")

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_HEARD = b"\nstopping: the step is finished and the run is saved; once more ends it at once\n"
# A scheduler may send several at a time.
TOGETHER = 1.0  # seconds


class StopOnSignals(Hook):
    """The last of the services."""

    def __init__(self, checkpoints: SaveCheckpoints, interrupts: bool = False) -> None:
        """interrupts: Ctrl-C too. In a notebook it ends the cell, as everywhere in Python."""
        self.checkpoints = checkpoints
        self._signals = (*SIGNALS, signal.SIGINT) if interrupts else SIGNALS
        self._stop = False
        self._first = 0.0  # when the first signal came
        self._signal = "another rank"
        self._passed_on = int("TORCHELASTIC_RUN_ID" in os.environ)  # to be expected
        self._before: dict[int, Any] = {}
        self._agreement: Agreement | None = None  # until the run starts

    def on_start(self, task: Task) -> None:
        self._agreement = Agreement()
        self.due = math.inf if world_size() == 1 else 0  # one rank agrees with none
        if threading.current_thread() is threading.main_thread():
            for number in self._signals:
                self._before[number] = signal.signal(number, self._note)

    def on_step(self, task: Task) -> None:
        ends_phase = task.progress.step == task.phase.steps
        if ends_phase and task.phase is task.phases[-1]:
            return  # the run is done: no need to leave, nor for others to wait
        assert self._agreement is not None
        self._stop = self._stop or self._agreement.reached(task.state.steps)
        # Gradients of an unfinished group of batches are in no checkpoint: continue to its end.
        if self._stop and not ends_phase and (task.updating or not task.train):
            self._leave(task)

    def on_phase_end(self, task: Task) -> None:
        if self._stop:
            self._leave(task)

    def ask(self, who: str) -> None:
        """Leave after this step. Every rank must be asked in the same step."""
        self._stop, self._signal, self.due = True, who, 0

    def on_end(self, task: Task) -> None:
        self._restore()

    def on_exception(self, task: Task) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self._first:
            self._first, self._signal, self.due = now, signal.Signals(number).name, 0
            if self._agreement is not None:
                self._agreement.ask()
            if number == signal.SIGINT and is_primary():
                os.write(2, _HEARD)  # a stream may be in the middle of a write
        elif now - self._first > TOGETHER:
            if self._passed_on:
                self._passed_on -= 1
                return
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _leave(self, task: Task) -> None:
        name = f"model_iteration{task.iteration}.torch"
        self.checkpoints.save_now(task, name)
        text = f"stopped by {self._signal} after step {task.iteration}"
        log.info("%s", text)
        raise Preempted(
            f"{text}; saved in {self.checkpoints.folder}. The same command resumes from there."
        )

    def _restore(self) -> None:
        if self._before:
            for number, handler in self._before.items():
                signal.signal(number, handler)
            self._before = {}
        if self._agreement is not None:
            self._agreement.close()
