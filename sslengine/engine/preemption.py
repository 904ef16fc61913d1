"""Save and end the run when the machine is taken away.

    SIGTERM, SIGUSR1, SIGUSR2    the step is finished, the run is saved, the command ends with
                                 status 75: the same command resumes from there
    SIGINT (Ctrl-C)              the same, in a run from the command line
    a second one                 ends the process at once; what was saved stays. Below torch's
                                 elastic agent, which passes on what it gets: a third one

All ranks save after the same step, whichever of them got the signal: they agree on it.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import signal
import threading
import time
from types import FrameType
from typing import Any

from sslengine.distributed.process_group import own_store
from sslengine.distributed.ranks import is_primary, rank, world_size
from sslengine.engine.checkpointing import SaveCheckpoints
from sslengine.errors import Preempted
from sslengine.hooks.events import Hook, Task

log = logging.getLogger("sslengine")

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_HEARD = b"\nstopping: the step is finished and the run is saved; once more ends it at once\n"
# A scheduler may send several at a time.
TOGETHER = 1.0  # seconds
POLL = 0.25  # seconds
_numbers = itertools.count()


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
        self.checkpoints.save_now(task, f"model_iteration{task.iteration}.torch")
        text = f"stopped by {self._signal} after step {task.iteration}"
        log.info("%s", text)
        raise Preempted(
            f"{text}; saved in {self.checkpoints.folder}. The same command resumes from there."
        )

    def on_end(self, task: Task) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
        if self._agreement is not None:
            self._agreement.close()

    on_exception = on_end


class Agreement:
    """Let all ranks end after the same step, whichever of them was asked. Made by all together.

    A rank may be a step behind another, so "after this step" is not the same step on all ranks.
    A thread of each rank polls the process group's store four times a second. After a request,
    each rank writes the number of its current step and waits after its next step. The last step
    of all ranks is one after the largest of these numbers: no rank has passed it.

    Cost: one comparison per step. Only the thread uses the store.
    """

    def __init__(self) -> None:
        self._step = 0
        self._last: int | None = None  # the step after which all ranks end
        self._wait_after: int | None = None
        self._asked = threading.Event()
        self._closed = threading.Event()
        self._changed = threading.Condition()
        self._store: Any = None
        number = next(_numbers)  # a process group may see several runs
        if world_size() > 1:
            self._store = own_store(f"agreement/{number}")
            threading.Thread(target=self._look, daemon=True, name="agreement").start()

    def ask(self) -> None:
        """Ask all ranks to end, from any rank and thread, at any time."""
        self._asked.set()

    def reached(self, step: int) -> bool:
        """Return whether this is the last step. Waits while the ranks are agreeing on it.

        Each rank calls it after each step, with the same count.
        """
        if self._store is None:
            return self._asked.is_set()
        with self._changed:
            self._step = step
            while self._must_wait():
                self._changed.wait(POLL)
        return self._last is not None and step >= self._last

    def _must_wait(self) -> bool:
        waiting = self._wait_after is not None and self._step >= self._wait_after
        return waiting and self._last is None and not self._closed.is_set()

    def close(self) -> None:
        """Let the thread end."""
        self._closed.set()

    def _look(self) -> None:
        try:
            while not self._closed.wait(POLL):
                if self._asked.is_set():
                    self._store.set("asked", "1")
                if self._store.check(["asked"]):
                    self._decide()
                    return
        except RuntimeError:  # the store is closed: another rank has ended, and this one will
            self.close()

    def _decide(self) -> None:
        with self._changed:
            made = self._step
            self._wait_after = made + 1
        self._store.set(f"made/{rank()}", str(made))
        keys = [f"made/{each}" for each in range(world_size())]
        while not self._store.check(keys):  # polled: a blocking wait would block other requests
            if self._closed.is_set():
                return
            time.sleep(POLL / 10)
        with self._changed:
            self._last = 1 + max(int(self._store.get(key)) for key in keys)
            self._changed.notify_all()
