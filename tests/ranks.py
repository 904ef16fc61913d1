"""Several gloo ranks for tests: processes that stay up and run functions when told.

    @pytest.fixture(scope="module")
    def two_ranks():
        with RankPool(2) as pool:
            yield pool

    def test_sum(two_ranks):
        assert two_ranks.run(my_function, 3) == [6, 6]     # one result per rank

`my_function(3)` runs on every rank inside a process group on loopback; it must be a
module-level function. A rank that raises fails the test with its traceback; a run that
takes longer than `timeout` seconds kills the pool and fails the test, it never hangs.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.forkserver
import os
import socket
import time
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

START_TIMEOUT = 120.0
# By the server that ranks are forked from: what most of them need, and takes seconds.
_IMPORTED = [
    "torch._dynamo",
    "torchvision",
    "pytest",
    "sslengine.data.plan.compiled",
    "sslengine.engines.train",
    "sslengine.hooks.default",
    "sslengine.methods.simclr",
    "sslengine.task.build",
    "sslengine.task.task",
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _serve(rank: int, world_size: int, port: int, pipe: Connection) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world_size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    import torch

    from sslengine.distributed import process_group

    torch.set_num_threads(1)
    warnings.simplefilter("error")  # as in the tests' own process
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
    """There is one in a process, for loader workers as well, and what it has imported they have."""
    multiprocessing.forkserver._forkserver._stop()


def _own_server() -> None:
    server = multiprocessing.forkserver._forkserver
    if server._forkserver_pid is None or server._forkserver_pid != RankPool.server:
        end_fork_server()
        server.set_forkserver_preload(_IMPORTED)
        server.ensure_running()
        RankPool.server = server._forkserver_pid


class RankPool:
    server = None  # the process

    def __init__(self, world_size: int, timeout: float = 90.0) -> None:
        self.world_size = world_size
        self.timeout = timeout
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []

    def __enter__(self) -> RankPool:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.send(None)
        for process in self._processes:
            process.join(5)
        self._kill()

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        _own_server()
        port = free_port()
        for rank in range(self.world_size):
            here, there = context.Pipe()
            process = context.Process(
                target=_serve, args=(rank, self.world_size, port, there), daemon=True
            )
            process.start()
            there.close()
            self._processes.append(process)
            self._pipes.append(here)
        self._collect(START_TIMEOUT)

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """`function(*args, **kwargs)` on every rank; their results in rank order."""
        if not self._processes:
            self._start()
        for pipe in self._pipes:
            pipe.send((function, args, kwargs))
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
                    status, value = "error", "the process died without a word"
                if status == "error":
                    self._kill()
                    raise AssertionError(f"rank {rank} of {self.world_size} failed:\n{value}")
                results[rank] = value
            if time.monotonic() > deadline:
                self._kill()
                missing = sorted(set(range(self.world_size)) - set(results))
                raise AssertionError(f"ranks {missing} did not answer within {timeout:.0f} s")
        return [results[rank] for rank in range(self.world_size)]

    def _kill(self) -> None:
        for process in self._processes:
            if process.is_alive():
                process.kill()
            process.join(5)
        self._processes, self._pipes = [], []
