"""A rank that has gone silent is noticed, so that the others do not wait for it for ever.

    with heartbeat(silence=20, on_lost=leave_at_once): ...        # collective

A thread of each rank counts in the store of the process group, and looks at the count of
the rank after it: a ring, so that each beat costs a rank three small messages however many
ranks there are. A count that stands still for `silence` seconds means that the process is
stopped, that it or its node has gone, or that its connection has: a rank which is only
slow, in a step or in reading data, continues counting. On every rank `on_lost` is then
called with a text that names the lost one, from the thread: the main thread is most likely
in a collective that will not end. A lost process of the same host is killed, lest it wake up
later.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sslengine.distributed.process_group import own_store
from sslengine.distributed.ranks import rank, world_size
from sslengine.errors import Preempted

BEAT = 1.0  # seconds
_POLL = 0.1
_DONE = "done"
_LOST = "lost"


@contextmanager
def heartbeat(silence: float, on_lost: Callable[[str], None]) -> Iterator[None]:
    """Within it all ranks watch each other. silence 0: they do not.

    Rank 0 leaves last: it may hold the store.
    """
    if world_size() == 1 or silence <= 0:
        yield
        return
    watch = _Watch(silence, on_lost)
    watch.start()
    together = True
    try:
        yield
    except Preempted:  # all ranks leave after the same step
        raise
    except BaseException:
        together = False
        raise
    finally:
        if together and rank() == 0:
            watch.wait_for_others()
        watch.close()


class _Watch(threading.Thread):
    def __init__(self, silence: float, on_lost: Callable[[str], None]) -> None:
        super().__init__(daemon=True, name="heartbeat")
        self._silence = silence
        self._on_lost = on_lost
        # The thread's own connection: in the other one the main thread may be waiting.
        self._store = own_store("heartbeat")
        self._watched = (rank() + 1) % world_size()
        self._last = ""
        self._silent_for = 0.0  # counted in own beats: a job that is suspended as a whole continues
        self._closed = threading.Event()
        self._store.set(f"who/{rank()}", f"{socket.gethostname()} {os.getpid()}")

    def run(self) -> None:
        try:
            count = 0
            while not self._closed.wait(BEAT):
                count += 1
                self._store.set(f"beat/{rank()}", str(count))
                self._look()
                if self._store.check([_LOST]):
                    self._tell(self._store.get(_LOST).decode())
                    return
            self._store.set(f"beat/{rank()}", _DONE)
        except RuntimeError:  # at a run's end its store goes with the process that holds it
            if not self._closed.wait(self._silence):
                self._tell("the process that holds the ranks' store (on the first node) has gone")

    def wait_for_others(self) -> None:
        """Until all are done, or none of the rest has given a sign of life for `silence`."""
        still, before = 0.0, [""]
        with contextlib.suppress(RuntimeError):  # another process held the store
            while still <= self._silence:
                beats = [self._count(each) for each in range(1, world_size())]
                if all(each == _DONE for each in beats):
                    return
                still = still + _POLL if beats == before else 0.0
                before = beats
                time.sleep(_POLL)

    def close(self) -> None:
        self._closed.set()
        self.join(timeout=2 * BEAT)

    def _look(self) -> None:
        now = self._count(self._watched)
        if now != self._last or now == _DONE:
            self._last, self._silent_for = now, 0.0
        else:
            self._silent_for += BEAT
        if self._silent_for > self._silence:
            self._declare_lost()

    def _count(self, rank: int) -> str:
        key = f"beat/{rank}"
        return self._store.get(key).decode() if self._store.check([key]) else ""

    def _declare_lost(self) -> None:
        host, process = self._store.get(f"who/{self._watched}").decode().split()
        if host == socket.gethostname():
            _kill_after_this(process)
        self._store.set(
            _LOST,
            f"rank {self._watched} (process {process} on {host}) has given no sign of life for "
            f"{self._silence:g} seconds (config.DISTRIBUTED.HEARTBEAT_SECONDS): it was stopped, or "
            f"it, its node or the connection has gone",
        )

    def _tell(self, text: str) -> None:
        if not self._closed.is_set():
            self._on_lost(text)


# Not for longer than a minute, if this process does not end.
_KILL = """\
for tenth in $(seq 600); do kill -0 "$0" && sleep 0.1 || break; done
kill -KILL "$1"
"""


def _kill_after_this(process: str) -> None:
    """As soon as this process has ended and its parent, an agent, has seen that: of several ranks
    that fail, an agent tells of the first alone, and this one says why."""
    quiet = subprocess.DEVNULL
    subprocess.Popen(
        ["/bin/sh", "-c", _KILL, str(os.getpid()), process],
        stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True,
    )  # fmt: skip
