"""Train objects on several processes of this machine: `sslengine.fit(..., ranks=2)`.

They are forked, so a class of a notebook and a dataset in memory need not be pickled; weights and
history are returned in a file. A fork cannot use CUDA once this process has; nor more than a thread
where this process has computed with several.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from sslengine.distributed import process_group
from sslengine.distributed.elastic import start_processes
from sslengine.distributed.ranks import is_primary, rank
from sslengine.errors import ConfigError, LaunchError
from sslengine.precision import build_precision
from sslengine.python.session import History, Session, as_module

TRAINED = "trained.torch"


def count_ranks(asked: int | str) -> int:
    """Return how many processes to start; 1: none, also where they are started already."""
    there = os.environ.get("WORLD_SIZE") if "RANK" in os.environ else None
    if asked == "auto":
        asked = int(there or torch.cuda.device_count() or 1)
    if not isinstance(asked, int) or asked < 1 or (there and asked not in (1, int(there))):
        started = f"; {there} are started" if there else ""
        raise ConfigError(
            f'fit: ranks={asked!r}: expected a number of processes or "auto"{started}.'
        )
    return 1 if there else asked


def fit_on_ranks(asked: Any, count: int, fit_here: Callable[[Any], Session]) -> Session:
    """Train on so many processes; the caller's objects get the weights, on the CPU."""
    if not hasattr(os, "fork") or torch.cuda.is_initialized():
        why = "this process has used CUDA" if hasattr(os, "fork") else "this system has no fork"
        raise LaunchError(
            f"fit: ranks={count}: the ranks are forked from this process, and {why}. Call fit in a "
            f"new process before anything is put on a GPU; or start a script without `ranks` by "
            f"torchrun --nproc-per-node={count} SCRIPT.py."
        )
    with TemporaryDirectory(prefix="sslengine-ranks-") as folder:
        try:
            start_processes(
                _fit_rank, (asked, fit_here, Path(folder)), processes=count, nodes=1, node_id=0,
                run_id="fit", start_method="fork",
            )  # fmt: skip
        except LaunchError as failed:
            error = _first_error(Path(folder))
            if error is None:
                raise
            raise error from failed
        # Written by a rank of this process, into a folder that is the user's alone.
        trained = torch.load(Path(folder, TRAINED), map_location="cpu", weights_only=False)
    for part, state in zip(_parts(asked), trained["parts"], strict=True):
        part.load_state_dict(state)
    cpu = torch.device("cpu")
    history, (iteration, complete) = History(*trained["history"]), trained["done"]
    return Session(asked, history, iteration, complete, cpu, build_precision("fp32", cpu))


def _parts(asked: Any) -> list[Any]:
    """List what training changes of the caller's objects."""
    optimizer = [asked.optimizer] if isinstance(asked.optimizer, torch.optim.Optimizer) else []
    return [asked.model, as_module(asked.loss), *optimizer]


def _fit_rank(asked: Any, fit_here: Callable[[Any], Session], folder: Path) -> None:
    torch.set_num_threads(1)  # a pool of threads does not survive a fork
    try:
        session = fit_here(asked)
        if is_primary():
            history = session.history.steps, session.history.epochs
            states = [each.state_dict() for each in _parts(asked)]
            done = session.iteration, session.complete
            torch.save({"parts": states, "history": history, "done": done}, folder / TRAINED)
    except Exception as error:
        with suppress(Exception):  # an error that cannot be pickled is reported as text
            kept = pickle.dumps(error)
            pickle.loads(kept)
            (folder / f"error{rank()}").write_bytes(kept)
        raise
    finally:
        process_group.leave()


def _first_error(folder: Path) -> Exception | None:
    """Return the error of the rank that failed first: those of others are its consequence."""
    files = sorted(folder.glob("error*"), key=lambda each: each.stat().st_mtime_ns)
    return pickle.loads(files[0].read_bytes()) if files else None
