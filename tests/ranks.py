"""Run functions on several gloo ranks, which are long-lived processes, where a warning is an error.

@pytest.fixture(scope="module")
def two_ranks():
    with RankPool(2) as pool:
        yield pool

def test_sum(two_ranks):
    assert two_ranks.run(my_function, 3) == [6, 6]     # one result per rank

`my_function(3)` runs on every rank inside a process group on loopback; it must be a module-level
function. If a rank raises, the call raises with its traceback; a call that takes longer than
`timeout` seconds kills the pool and raises.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import socket
import time
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, ClassVar

import torch

from sslengine.distributed import process_group
from sslengine.errors import TrainingError

START_TIMEOUT = 120.0


class RankError(TrainingError, AssertionError):
    """A rank failed, or did not answer."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _serve(rank: int, world_size: int, port: int, pipe: Connection) -> None:
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "MASTER_PORT": port}
    os.environ.update({key: str(each) for key, each in place.items()}, MASTER_ADDR="127.0.0.1")
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    process_group.join("gloo", torch.device("cpu"), timeout_minutes=2)
    pipe.send(("ready", None))
    while True:
        message = pipe.recv()
        if message is None:
            process_group.leave()
            return
        function, args, kwargs = message
        try:
            pipe.send(("ok", function(*args, **kwargs)))
        except BaseException:
            pipe.send(("error", traceback.format_exc()))


def end_fork_server() -> None:
    """End this process's fork server, which loader workers use as well, with its imports."""
    server: Any = multiprocessing.forkserver._forkserver  # type: ignore[attr-defined]
    # It ends by itself only when no process has its pipe open; a forked process may.
    if server._forkserver_pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(server._forkserver_pid, signal.SIGKILL)
    server._stop()


class RankPool:
    # Modules that the fork server imports once, for all ranks: importing them takes seconds.
    imported: ClassVar[tuple[str, ...]] = (
        "torch._dynamo",
        "torchvision",
        "pytest",
        "sslengine.data.augment.compiled",
        "sslengine.engines.train",
        "sslengine.hooks.default",
        "sslengine.launch.cli",
        "sslengine.methods.simclr",
        "sslengine.engine.build",
        "sslengine.engine.task",
    )
    server: ClassVar[int | None] = None  # the process id of the fork server

    def __init__(self, world_size: int, timeout: float = 200.0) -> None:
        self.world_size = world_size
        self.timeout = timeout
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []

    def __enter__(self) -> RankPool:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.send(None)
        for process in self._processes:
            process.join(5)
        self._kill()

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        self.own_server()
        port = free_port()
        for rank in range(self.world_size):
            here, there = context.Pipe()
            arguments = (rank, self.world_size, port, there)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            there.close()
            self._processes.append(process)
            self._pipes.append(here)
        self._collect(START_TIMEOUT)

    @classmethod
    def own_server(cls) -> None:
        """Use a fork server that has imported these modules."""
        server: Any = multiprocessing.forkserver._forkserver  # type: ignore[attr-defined]
        if server._forkserver_pid is None or server._forkserver_pid != RankPool.server:
            end_fork_server()
            server.set_forkserver_preload(list(cls.imported))
            server.ensure_running()
            RankPool.server = server._forkserver_pid

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Call `function(*args, **kwargs)` on every rank; return the results in rank order."""
        if not self._processes:
            self._start()
        try:
            for pipe in self._pipes:
                pipe.send((function, args, kwargs))
        except OSError as error:
            for process in self._processes:
                process.join(1)
            ended = [each.exitcode for each in self._processes]
            raise self._fail(f"ranks have ended since their last call: status {ended}") from error
        return self._collect(self.timeout)

    def _collect(self, timeout: float) -> list[Any]:
        deadline = time.monotonic() + timeout
        results: dict[int, Any] = {}
        while len(results) < self.world_size:
            for rank, pipe in enumerate(self._pipes):
                if rank in results or not pipe.poll(0.01):
                    continue
                try:
                    status, value = pipe.recv()
                except EOFError:
                    status, value = "error", "the process died without an error"
                if status == "error":
                    raise self._fail(f"rank {rank} of {self.world_size} failed:\n{value}")
                results[rank] = value
            if time.monotonic() > deadline:
                missing = sorted({*range(self.world_size)} - {*results})
                raise self._fail(f"ranks {missing} did not answer within {timeout:.0f} s")
        return [results[rank] for rank in range(self.world_size)]

    def _fail(self, text: str) -> RankError:
        self._kill()
        return RankError(text)

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.join(5)
        self._processes, self._pipes = [], []
