"""Several processes on this node, by torch's elastic agent: one fails, all end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from sslengine.errors import LaunchError


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
    )
    # The agent would print each failed rank's traceback; the first one's is told below.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    try:
        elastic_launch(config, function)(*arguments)
    except ChildFailedError as error:
        raise LaunchError(_describe(error)) from None


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
