"""Several processes on this node, by torch's elastic agent: one fails, all end."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from sslengine.errors import LaunchError, Preempted

# How long ranks may take to save when they are told to end; then they are killed.
GRACE = 600  # seconds


def start_processes(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    processes: int,
    nodes: int,
    node_id: int,
    endpoint: str,
    run_id: str,
) -> None:
    """`function(*arguments)` in each of `processes` new processes, as ranks of one run."""
    single = nodes == 1
    config = LaunchConfig(
        min_nodes=nodes,
        max_nodes=nodes,
        nproc_per_node=processes,
        run_id=run_id,
        rdzv_backend="c10d" if single else "static",
        rdzv_endpoint=endpoint,
        rdzv_configs={} if single else {"rank": node_id},
        max_restarts=0,
        start_method="spawn",
        **_grace(),
    )
    # The agent would print each failed rank's traceback; the first one's is told below.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    try:
        with _as_sigterm(signal.SIGUSR1, signal.SIGUSR2):
            elastic_launch(config, _until_told)(function, arguments)
    except ChildFailedError as error:
        if any(failure.exitcode == os.EX_TEMPFAIL for failure in error.failures.values()):
            raise Preempted(_TOLD.format("a signal to a rank")) from None
        raise LaunchError(_describe(error)) from None
    except SignalException as told:
        raise Preempted(_TOLD.format(told.sigval.name)) from None


_TOLD = "stopped by {}; the ranks have ended. The same command goes on from the newest checkpoint."


def _until_told(function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """In each rank. It leaves by a status: to return would be to wait for the agent, which
    reads what ranks return only when it is not ending them itself."""
    try:
        function(*arguments)
    except Preempted:
        sys.exit(os.EX_TEMPFAIL)


def _grace() -> dict[str, Any]:
    """Older agents wait for 30 seconds, and nothing changes that."""
    known = any(each.name == "shutdown_timeout" for each in fields(LaunchConfig))
    return {"shutdown_timeout": GRACE} if known else {}


@contextmanager
def _as_sigterm(*numbers: signal.Signals) -> Iterator[None]:
    """The agent passes SIGTERM on to its ranks; let it do so for these as well."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def pass_on(number: int, frame: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    before = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _describe(error: ChildFailedError) -> str:
    """The rank that failed first; those that followed only lost their peer."""
    rank, failure = min(error.failures.items(), key=lambda item: item[1].timestamp)
    return f"rank {rank} failed: {_message(failure)}"


def _message(failure: ProcessFailure) -> str:
    data = failure.error_file_data.get("message") if failure.error_file_data else None
    if not isinstance(data, dict):
        return str(failure.message)
    text = str(data.get("message", ""))
    name, _, detail = text.partition(": ")
    if name in _USER_ERRORS:
        return detail
    trace = data.get("extraInfo", {}).get("py_callstack", "")
    return f"{text}\n{trace}".rstrip()


def _names(cls: type[Exception]) -> set[str]:
    return {cls.__name__}.union(*(_names(sub) for sub in cls.__subclasses__()))


_USER_ERRORS = _names(LaunchError.__mro__[1])
