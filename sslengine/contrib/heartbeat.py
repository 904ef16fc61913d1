"""Detect a rank that no longer responds, so that the others do not wait for it for ever.

    with heartbeat(silence=20, on_lost=partial(leave_at_once, run_dir)): ...        # collective

A thread of each rank increments a counter in the store of the process group and watches the
counter of the next rank. In this ring each beat costs a rank three small messages, for any
number of ranks. If a counter does not change for `silence` seconds, its process is stopped, or
the process, its node or its connection is lost. A rank that is only slow, in a step or in
reading data, still counts. `on_lost` is then called on every rank with a text that names the
lost rank. The thread calls it, since the main thread is probably blocked in a collective. A lost
process on the same host is killed, so that it cannot continue later.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from sslengine.distributed.process_group import keep_record, own_store
from sslengine.distributed.ranks import rank, world_size
from sslengine.errors import LaunchError, Preempted
from sslengine.monitor.console import close_log

log = logging.getLogger("sslengine")

BEAT = 1.0  # seconds
_POLL = 0.1
_DONE = "done"
_LOST = "lost"


@contextmanager
def heartbeat(silence: float, on_lost: Callable[[str], None]) -> Iterator[None]:
    """Make a context in which ranks watch each other; with silence 0 they do not.

    Rank 0 leaves it last, since it may hold the store.
    """
    if world_size() == 1 or silence <= 0:
        yield
        return
    watch = _Watch(silence, on_lost)
    watch.start()
    together = True
    try:
        yield
    except Preempted:  # all ranks end after the same step
        raise
    except BaseException:
        together = False
        raise
    finally:
        if together and rank() == 0:
            watch.wait_for_others()
        watch.close()


def leave_at_once(run_dir: Path, text: str) -> None:
    """End this rank because another is lost, in a thread: the main one may be blocked.

    The agent then ends the other ranks and reports the error; without one it is printed here.
    """
    log.critical("%s", text)
    error = LaunchError(f"{text}. See {keep_record(run_dir)}")
    close_log()
    if "TORCHELASTIC_ERROR_FILE" in os.environ:
        get_error_handler().record_exception(error)
    else:
        sys.stderr.write(f"error: {error}\n")
    os._exit(1)


class _Watch(threading.Thread):
    def __init__(self, silence: float, on_lost: Callable[[str], None]) -> None:
        super().__init__(daemon=True, name="heartbeat")
        self._silence = silence
        self._on_lost = on_lost
        # A separate connection: the main thread may be blocked in the shared one.
        self._store = own_store("heartbeat")
        self._watched = (rank() + 1) % world_size()
        self._last = ""
        self._silent_for = 0.0  # in own beats: a job suspended as a whole continues
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
                    self._report(self._store.get(_LOST).decode())
                    return
            self._store.set(f"beat/{rank()}", _DONE)
        except RuntimeError:  # at the end of a run the store closes with the process that holds it
            if not self._closed.wait(self._silence):
                self._report("the process that holds the ranks' store (on the first node) is lost")

    def wait_for_others(self) -> None:
        """Return when all ranks are done, or no counter of the others changes for `silence`."""
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
            f"rank {self._watched} (process {process} on {host}) has not responded for "
            f"{self._silence:g} seconds (config.DISTRIBUTED.HEARTBEAT_SECONDS): it was stopped, or "
            f"the process, its node or the connection is lost",
        )

    def _report(self, text: str) -> None:
        if not self._closed.is_set():
            self._on_lost(text)


# Wait for at most a minute if this process does not end.
_KILL = """\
for tenth in $(seq 600); do kill -0 "$0" && sleep 0.1 || break; done
kill -KILL "$1"
"""


def _kill_after_this(process: str) -> None:
    """Kill a process after this one has ended: the agent reports only the first rank that fails,
    and the report of this one has the reason."""
    quiet = subprocess.DEVNULL
    subprocess.Popen(
        ["/bin/sh", "-c", _KILL, str(os.getpid()), process],
        stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True,
    )  # fmt: skip
