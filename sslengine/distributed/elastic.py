"""Start several processes on this node with torch's elastic agent. If one fails, all end or are
restarted."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from multiprocessing import resource_tracker
from typing import Any

from torch.distributed import DistError
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.multiprocessing import (  # type: ignore[attr-defined]
    _prctl_pr_set_pdeathsig as set_parent_death_signal,
)

from sslengine.config.users_code import users_frames
from sslengine.distributed.process_group import LAUNCHED, open_store
from sslengine.errors import LaunchError, Preempted, SSLEngineError

log = logging.getLogger("sslengine")

# These loggers would print each failed rank's traceback and each signal. The error below reports
# what happened.
_SILENCED = (
    "torch.distributed.elastic",
    "torch.distributed.elastic.agent.server.api",
    "torch.multiprocessing.spawn",
)

# After a signal, ranks have this time in seconds to save; then they are killed. Older versions of
# torch have no such option, and give 30.
_KNOWN = any(each.name == "shutdown_timeout" for each in fields(LaunchConfig))
_GRACE: dict[str, Any] = {"shutdown_timeout": 600} if _KNOWN else {}
_OPEN = 60.0  # seconds, for a store
_CAUSE = 10.0  # seconds, for the agent to see why another rank ended

# A scheduler sends these to all processes of a job. They end a rank that is still importing.
_SCHEDULERS = (signal.SIGUSR1, signal.SIGUSR2)
# The agent installs handlers for these.
_AGENTS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
# Exit codes of ranks that ended because of a signal.
_SIGNALLED = (os.EX_TEMPFAIL, *(-number for number in _SCHEDULERS))
# Modules from which the loss of another rank is raised.
_COLLECTIVES = ("torch.distributed", "torch.nn.parallel", "torch.autograd", "sslengine.distributed")
_PREEMPTED = (
    "stopped by {}; the ranks have ended. The same command resumes from the newest checkpoint."
)


def start_processes(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    processes: int,
    nodes: int,
    node_id: int,
    run_id: str,
    endpoint: str = "",
    minutes: float = 10.0,
    max_restarts: int = 0,
    start_method: str = "spawn",
) -> None:
    """Call `function(*arguments)` in each of `processes` new processes, the ranks of one run.

    If one fails, all end and are restarted, up to `max_restarts` times. The agent's own restarts
    are not used: it would also restart a run after a signal, or after a user's error.
    endpoint: host:port of the store for several nodes, which the first node holds. Empty: one
    node, whose store accepts connections from this machine only.
    minutes: how long a node waits for the others.
    start_method: fork, for arguments that cannot be pickled.
    """
    for name in _SILENCED:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # Ranks would print the C++ frames of each connection that a failed rank closes.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    host, _, port = (endpoint or "127.0.0.1:0").rpartition(":")
    store = open_store(host, int(port), True, _OPEN) if node_id == 0 else None  # for all attempts
    if store is not None:
        endpoint = f"{host}:{store.port}"
    _start_tracker(*_SCHEDULERS)
    for attempt in range(max_restarts + 1):
        config = LaunchConfig(
            min_nodes=nodes,
            max_nodes=nodes,
            nproc_per_node=processes,
            run_id=f"{run_id}-{attempt}",
            rdzv_backend="static",  # the c10d backend unpickles what its store holds
            rdzv_endpoint=endpoint,
            rdzv_configs={"rank": node_id, "timeout": 60 * minutes},
            max_restarts=0,
            start_method=start_method,
            **_GRACE,
        )
        try:
            with _forward_as_sigterm(*_SCHEDULERS):
                elastic_launch(config, _run_rank)(function, arguments, attempt)
            break
        except ChildFailedError as error:
            if any(failure.exitcode in _SIGNALLED for failure in error.failures.values()):
                raise Preempted(_PREEMPTED.format("a signal to a rank")) from None
            text, by_user = _describe(error)
            if by_user or attempt == max_restarts:
                raise LaunchError(text) from None
            log.warning("%s\nrestarting all ranks: %d of %d", text, attempt + 1, max_restarts)
        except SignalException as error:
            raise Preempted(_PREEMPTED.format(error.sigval.name)) from None
        except DistError as error:
            raise LaunchError(
                f"node {node_id} of {nodes} did not meet the others at {endpoint} within "
                f"{minutes:g} minutes (config.DISTRIBUTED.RENDEZVOUS_MINUTES): {error}"
            ) from error


def _run_rank(function: Callable[..., Any], arguments: tuple[Any, ...], attempt: int) -> None:
    """Call the function of a rank. A preempted rank exits with a status instead of returning:
    to return it would wait for the agent, which does not read results while it ends the ranks."""
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(attempt)  # as if the agent had restarted it
    os.environ[LAUNCHED] = "1"
    _end_with_the_launcher()
    try:
        function(*arguments)
    except Preempted:
        sys.exit(os.EX_TEMPFAIL)
    except Exception as error:
        if _may_be_anothers(error):
            # The agent reports one rank, and does not know which of two failed first. It ends this
            # one when it sees the other; if training has taken that signal, this one ends itself.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            time.sleep(_CAUSE)
        raise error.with_traceback(users_frames(error) or error.__traceback__)  # noqa: B904


def _may_be_anothers(error: Exception) -> bool:
    """Return whether a collective, or a backward pass that holds some, raised the error."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    in_torch = frame.f_globals["__name__"].startswith(_COLLECTIVES)
    return isinstance(error, DistError) or (isinstance(error, RuntimeError) and in_torch)


def _end_with_the_launcher() -> None:
    """Send SIGTERM to this rank when the launcher ends: a killed launcher sends no signal. The rank
    saves if it is training. Torch's own signal (SIGINT, only on Linux) is disabled."""
    set_parent_death_signal(0)
    launcher = multiprocessing.parent_process()
    assert launcher is not None
    watch = threading.Thread(target=_wait_for, args=(launcher,), daemon=True, name="launcher")
    watch.start()


def _wait_for(launcher: Any) -> None:
    launcher.join()
    log.warning("the process that started the ranks has ended; the ranks save and end as well")
    os.kill(os.getpid(), signal.SIGTERM)


def _start_tracker(*blocked: signal.Signals) -> None:
    """Start multiprocessing's resource tracker, which all ranks share, with these signals blocked:
    a scheduler sends them to all processes, and they would end the tracker."""
    signal.pthread_sigmask(signal.SIG_BLOCK, blocked)  # the child process inherits the mask
    try:
        resource_tracker.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)


@contextmanager
def _forward_as_sigterm(*numbers: signal.Signals) -> Iterator[None]:
    """Send SIGTERM to this process on each of these signals in a context: the agent forwards it to
    its ranks. Earlier handlers are called as well.

    All handlers are restored at the end. The agent does not restore those that it replaces, so
    Ctrl-C in a notebook would not work afterwards.
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
    """Return the message of the rank that failed first, and whether the user has to correct it.

    Later failures are its consequence; a LaunchError takes precedence.
    """
    rank, failure = min(
        error.failures.items(),
        key=lambda item: (_record(item[1])[0] != "LaunchError", item[1].timestamp),
    )
    name, said, trace = _record(failure)
    by_engine = name in _names(SSLEngineError)
    text = said if by_engine or not name else f"{name}: {said}\n{trace}".rstrip()
    by_user = by_engine and name not in _names(LaunchError)
    return f"rank {rank} on {socket.gethostname()} failed: {text}", by_user


def _record(failure: ProcessFailure) -> tuple[str, str, str]:
    """Return the class of the exception, "" if the process ended without; its text; its frames."""
    recorded = (failure.error_file_data or {}).get("message")
    if not isinstance(recorded, dict):
        return "", str(failure.message), ""
    name, _, text = str(recorded["message"]).partition(": ")
    return name, text, recorded.get("extraInfo", {}).get("py_callstack", "")


def _names(cls: type[Exception]) -> set[str]:
    return {cls.__name__}.union(*(_names(sub) for sub in cls.__subclasses__()))
