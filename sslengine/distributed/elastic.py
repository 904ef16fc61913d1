"""Several processes on this node, by torch's elastic agent: one fails, all end or start again."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from multiprocessing import resource_tracker
from typing import Any, NoReturn

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import (
    ChildFailedError,
    ProcessFailure,
    get_error_handler,
)
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.multiprocessing import (  # type: ignore[attr-defined]
    _prctl_pr_set_pdeathsig as set_parent_death_signal,
)

from sslengine.distributed.meeting import open_store
from sslengine.distributed.process_group import LAUNCHED
from sslengine.errors import LaunchError, Preempted, SSLEngineError

log = logging.getLogger("sslengine")

# The agent would print each failed rank's traceback, and each signal that it gets and sends. What
# happened is reported below.
_TALKATIVE = (
    "torch.distributed.elastic",
    "torch.distributed.elastic.agent.server.api",
    "torch.multiprocessing.spawn",
)

# How long ranks may take to save on a signal; then they are killed.
GRACE = 600  # seconds
_OPEN = 60.0  # seconds, for a store

# What a scheduler sends to all processes of a job alike. A rank that is still importing dies of it.
_SCHEDULERS = (signal.SIGUSR1, signal.SIGUSR2)
# What the agent listens to.
_AGENTS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_WAS_TOLD = (os.EX_TEMPFAIL, *(-number for number in _SCHEDULERS))


def start_processes(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    processes: int,
    nodes: int,
    node_id: int,
    run_id: str,
    endpoint: str = "",
    max_restarts: int = 0,
) -> None:
    """`function(*arguments)` in each of `processes` new processes, as ranks of one run.

    If one fails all end, and are started again up to `max_restarts` times. Not by the agent:
    it would also restart a run after a signal to end, or after a user's error.
    Several nodes have met at the endpoint (meeting.py), and the first holds the store there. The
    store of one node is reached from this machine alone.
    """
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if not endpoint:
        store = open_store("127.0.0.1", 0, True, _OPEN)  # kept for all attempts
        endpoint = f"127.0.0.1:{store.port}"
    _start_tracker(*_SCHEDULERS)
    for attempt in range(max_restarts + 1):
        config = LaunchConfig(
            min_nodes=nodes,
            max_nodes=nodes,
            nproc_per_node=processes,
            run_id=f"{run_id}-{attempt}",
            rdzv_backend="static",  # c10d's reads pickles out of its store
            rdzv_endpoint=endpoint,
            rdzv_configs={"rank": node_id},
            max_restarts=0,
            start_method="spawn",
            **_grace(),
        )
        try:
            with _as_sigterm(*_SCHEDULERS):
                elastic_launch(config, _until_told)(function, arguments, attempt)
            break
        except ChildFailedError as error:
            if any(failure.exitcode in _WAS_TOLD for failure in error.failures.values()):
                raise Preempted(_TOLD.format("a signal to a rank")) from None
            text, by_user = _describe(error)
            if by_user or attempt == max_restarts:
                raise LaunchError(text) from None
            log.warning("%s\nstarting all ranks again: %d of %d", text, attempt + 1, max_restarts)
        except SignalException as told:
            raise Preempted(_TOLD.format(told.sigval.name)) from None


_TOLD = "stopped by {}; the ranks have ended. The same command resumes from the newest checkpoint."


def _until_told(function: Callable[..., Any], arguments: tuple[Any, ...], attempt: int) -> None:
    """In each rank. It leaves by a status: to return would be to wait for the agent, which
    reads what ranks return only when it is not ending them itself."""
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(attempt)  # as if the agent had restarted it
    os.environ[LAUNCHED] = "1"
    _follow_the_launchers_end()
    try:
        function(*arguments)
    except Preempted:
        sys.exit(os.EX_TEMPFAIL)


def _follow_the_launchers_end() -> None:
    """A launcher that is killed sends no signal. This rank is then signalled as by a scheduler: it
    saves if it trains. Torch's own signal, SIGINT and on Linux alone, would come on top of it."""
    set_parent_death_signal(0)
    launcher = multiprocessing.parent_process()
    assert launcher is not None
    threading.Thread(target=_follow, args=(launcher,), daemon=True, name="launcher").start()


def _follow(launcher: Any) -> None:
    launcher.join()
    log.warning("the process that started the ranks has ended; they save and end as well")
    os.kill(os.getpid(), signal.SIGTERM)


def fail_at_once(error: Exception) -> NoReturn:
    """End this rank from any thread, whatever the main one waits for. The agent, which then
    ends the others, tells the user; where there is none, this does."""
    if "TORCHELASTIC_ERROR_FILE" in os.environ:
        get_error_handler().record_exception(error)
    else:
        sys.stderr.write(f"error: {error}\n")
    os._exit(1)


def _grace() -> dict[str, Any]:
    """Older agents wait for 30 seconds, and nothing changes that."""
    known = any(each.name == "shutdown_timeout" for each in fields(LaunchConfig))
    return {"shutdown_timeout": GRACE} if known else {}


def _start_tracker(*deaf_to: signal.Signals) -> None:
    """multiprocessing's helper process, shared by all ranks. A scheduler sends its signals to
    all processes alike, and this one would not survive them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, deaf_to)  # it inherits that
    try:
        resource_tracker.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, deaf_to)


@contextmanager
def _as_sigterm(*numbers: signal.Signals) -> Iterator[None]:
    """The agent passes SIGTERM on to its ranks; let it do so for these as well. Who listened
    to them before gets them too.

    Handlers are put back, the agent's as well: it leaves its own behind, and Ctrl-C in a notebook
    would be no Ctrl-C.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def pass_on(number: int, frame: Any) -> None:
        listener = before.get(number)
        if callable(listener):
            listener(number, frame)
        os.kill(os.getpid(), signal.SIGTERM)

    before: dict[int, Any] = {each: signal.getsignal(each) for each in (*numbers, *_AGENTS)}
    for number in numbers:
        signal.signal(number, pass_on)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _describe(error: ChildFailedError) -> tuple[str, bool]:
    """The rank that failed first, for those that followed only lost their peer; but if ranks
    say why they all end, that. And is it something that a user has to put right?"""
    rank, failure = min(
        error.failures.items(),
        key=lambda item: (_name(item[1]) != "LaunchError", item[1].timestamp),
    )
    text = f"rank {rank} on {socket.gethostname()} failed: {_message(failure)}"
    return text, _name(failure) in _USER_ERRORS - _names(LaunchError)


def _message(failure: ProcessFailure) -> str:
    name = _name(failure)
    if not name:
        return str(failure.message)
    text = _recorded(failure)["message"]
    if name in _USER_ERRORS:
        return str(text.partition(": ")[2])
    trace = _recorded(failure).get("extraInfo", {}).get("py_callstack", "")
    return f"{text}\n{trace}".rstrip()


def _name(failure: ProcessFailure) -> str:
    """The exception's class; empty if the process ended without one."""
    return str(_recorded(failure).get("message", "")).partition(": ")[0]


def _recorded(failure: ProcessFailure) -> dict[str, Any]:
    data = failure.error_file_data.get("message") if failure.error_file_data else None
    return data if isinstance(data, dict) else {}


def _names(cls: type[Exception]) -> set[str]:
    return {cls.__name__}.union(*(_names(sub) for sub in cls.__subclasses__()))


_USER_ERRORS = _names(SSLEngineError)
