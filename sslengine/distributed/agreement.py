"""Let all ranks end after the same step, whichever of them got the signal.

    stop = Agreement()          # collective
    stop.ask()                  # on any rank, at any time, from any thread
    if stop.reached(step):      # on each rank after each step, with the same count

A rank may be a step behind another, so "after this step" is not the same step on all ranks.
A thread of each rank polls the process group's store four times a second. After a request,
each rank writes the number of its current step and waits after its next step. The last step
of all ranks is one after the largest of these numbers: no rank has passed it.

Cost: one comparison per step. Only the thread uses the store.
"""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

from sslengine.distributed.process_group import own_store
from sslengine.distributed.ranks import rank, world_size

POLL = 0.25  # seconds
_numbers = itertools.count()


class Agreement:
    asked = False  # any of this process: elastic.py

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
        Agreement.asked = True
        self._asked.set()

    def reached(self, step: int) -> bool:
        """Return whether this is the last step. Waits while the ranks are agreeing on it."""
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
