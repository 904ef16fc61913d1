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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from multiprocessing import resource_tracker
from typing import Any, NoReturn

from torch.distributed import DistError
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

from sslengine.config.users_code import users_frames
from sslengine.distributed.agreement import Agreement
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

# After a signal, ranks have this time to save; then they are killed.
GRACE = 600  # seconds
_OPEN = 60.0  # seconds, for a store
_CAUSE = 10.0  # seconds, for the agent to see why another rank ended

# A scheduler sends these to all processes of a job. They end a rank that is still importing.
_SCHEDULERS = (signal.SIGUSR1, signal.SIGUSR2)
# The agent installs handlers for these.
_AGENTS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
# Exit codes of ranks that ended because of a signal.
_SIGNALLED = (os.EX_TEMPFAIL, *(-number for number in _SCHEDULERS))
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
) -> None:
    """Call `function(*arguments)` in each of `processes` new processes, the ranks of one run.

    If one fails, all end and are restarted, up to `max_restarts` times. The agent's own restarts
    are not used: it would also restart a run after a signal, or after a user's error.
    endpoint: host:port of the store for several nodes, which the first node holds. Empty: one
    node, whose store accepts connections from this machine only.
    minutes: how long a node waits for the others.
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
            start_method="spawn",
            **_grace(),
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
        if _lost_another_rank(error):
            _wait_for_the_agent()
        raise error.with_traceback(users_frames(error) or error.__traceback__)  # noqa: B904


def _lost_another_rank(error: Exception) -> bool:
    return isinstance(error, DistError) or "gloo/transport" in str(error)


def _wait_for_the_agent() -> None:
    """Wait for the end of this rank, which failed because another one did.

    The agent reports one rank, and does not know which of two failed first; it ends this one when
    it sees the other one. Training may have noted that signal already.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if Agreement.asked:
        time.sleep(1)  # it may have been a scheduler's
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_CAUSE)


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


def fail_at_once(error: Exception) -> NoReturn:
    """End this rank from any thread, even if the main thread is blocked. The agent then ends the
    other ranks and reports the error; without an agent it is printed here."""
    if "TORCHELASTIC_ERROR_FILE" in os.environ:
        get_error_handler().record_exception(error)
    else:
        sys.stderr.write(f"error: {error}\n")
    os._exit(1)


def _grace() -> dict[str, Any]:
    """Return torch's option of the grace period; older versions have none, and 30 seconds."""
    known = any(each.name == "shutdown_timeout" for each in fields(LaunchConfig))
    return {"shutdown_timeout": GRACE} if known else {}


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
    """Return the message of the rank that failed first, since later failures are its consequence; a
    LaunchError takes precedence. And whether it is an error that the user has to correct."""
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
    """Return the name of the exception's class; empty if the process ended without an exception."""
    return str(_recorded(failure).get("message", "")).partition(": ")[0]


def _recorded(failure: ProcessFailure) -> dict[str, Any]:
    data = failure.error_file_data.get("message") if failure.error_file_data else None
    return data if isinstance(data, dict) else {}


def _names(cls: type[Exception]) -> set[str]:
    return {cls.__name__}.union(*(_names(sub) for sub in cls.__subclasses__()))


_USER_ERRORS = _names(SSLEngineError)
