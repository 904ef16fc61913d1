"""Join and leave the process group of a run, make smaller groups, record what a failed run did."""

from __future__ import annotations

import datetime
import faulthandler
import json
import logging
import os
import socket
import time
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed import distributed_c10d as c10d

from sslengine.distributed.ranks import initialized, rank, world_size
from sslengine.errors import LaunchError

log = logging.getLogger("sslengine")

Group = dist.ProcessGroup

# Set in the environment of ranks that sslengine has launched: rank 0 runs at MASTER_ADDR.
LAUNCHED = "SSLENGINE_LAUNCHED"
_PORT = "port of rank 0's store"
_OPEN = 60.0  # seconds
_POLL = 0.1  # seconds
_LAST = 200  # collectives that torch keeps
_BACKLOG = 2048  # pending connections: those of all ranks may arrive at the same time


def join(
    backend: str,
    device: torch.device,
    timeout_minutes: float,
    rendezvous_minutes: float = 10.0,
) -> None:
    """Join the run that the environment (RANK, WORLD_SIZE, MASTER_ADDR ...) describes."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(_LAST))
    if backend == "nccl" and device.type != "cuda":
        backend = "gloo"
    timeout = datetime.timedelta(minutes=timeout_minutes)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # An elastic agent's store outlives a failed attempt. The prefix prevents the next attempt from
    # reading the addresses of ranks that have ended.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store: c10d.Store = c10d.PrefixStore(f"attempt/{attempt}", _store(rank, rendezvous_minutes))
    own = _open_own(store) if rank == 0 and LAUNCHED in os.environ else None
    _wait_for_ranks(store, world_size, rendezvous_minutes)
    if LAUNCHED in os.environ:
        store = own or open_store(
            os.environ["MASTER_ADDR"], int(store.get(_PORT)), False, 60 * rendezvous_minutes
        )
    store.set_timeout(timeout)
    if _is_loopback(os.environ["MASTER_ADDR"]):
        _stay_on_this_machine()
    dist.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=timeout,
        device_id=device if backend == "nccl" else None,
    )


def _store(rank: int, minutes: float) -> c10d.Store:
    """Connect to the store of the rendezvous. Rank 0 opens it if no agent has."""
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise LaunchError(
            f"RANK and WORLD_SIZE are set, but {' and '.join(missing)} not, so the ranks cannot "
            f"connect. Start them with torchrun or srun, or set rank 0's host and a free port."
        )
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    opens = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    return open_store(host, port, opens, 60 * minutes)


def _wait_for_ranks(store: c10d.Store, count: int, minutes: float) -> None:
    """Return when all ranks have called this."""
    until = time.monotonic() + 60 * minutes
    if store.add("joined", 1) == count:
        store.set("all", "1")
    while not store.check(["all"]):  # polled: the store's own wait blocks signal handlers
        if time.monotonic() > until:
            raise LaunchError(
                f"{store.add('joined', 0)} of {count} ranks connected within {minutes:g} minutes "
                f"(config.DISTRIBUTED.RENDEZVOUS_MINUTES). Check the output of the others."
            )
        time.sleep(_POLL)


def open_store(host: str, port: int, mine: bool, seconds: float) -> TCPStore:
    """Open a store, or connect to one unless it is `mine`. port 0: any free port.

    Torch listens on all interfaces, and anyone who can connect to a store can write to it. So
    for `localhost` the socket is made here, and listens on that interface only.
    """
    listener = _listen(port) if mine and _is_loopback(host) else None
    if listener is not None:
        port = listener.getsockname()[1]
    try:
        return TCPStore(
            host,
            port,
            is_master=mine,
            timeout=datetime.timedelta(seconds=max(1.0, seconds)),
            wait_for_workers=False,
            multi_tenant=mine,
            master_listen_fd=None if listener is None else listener.detach(),
            # Before torch 2.8 the libuv server does not accept an open socket.
            use_libuv=listener is None or torch.__version__ >= "2.8",
        )
    except RuntimeError as error:
        raise LaunchError(
            f"cannot {'open' if mine else 'reach'} {host}:{port} from {socket.gethostname()}. If "
            f"the port is in use, set another MASTER_PORT (or config.SLURM.PORT_ID): {error}"
        ) from error


def _is_loopback(host: str) -> bool:
    """Return whether the host is reachable from this machine only."""
    return host == "localhost" or host.startswith("127.")


def _listen(port: int) -> socket.socket | None:
    """Return None if the port is in use: torch shares a store of this process, or says why not."""
    try:
        return socket.create_server(("127.0.0.1", port), backlog=_BACKLOG)
    except OSError:
        return None


def _open_own(agents: c10d.Store) -> c10d.Store:
    """Open a store that rank 0 holds for the run. The agent's store ends with the launcher; with
    this one, ranks whose launcher was killed can still agree on the step after which they save."""
    own = open_store(os.environ["MASTER_ADDR"], 0, True, _OPEN)
    agents.set(_PORT, str(own.port))
    return own


def _stay_on_this_machine() -> None:
    """Let gloo and NCCL use the loopback interface, unless the user has chosen one. By default
    they listen on the interface of the host name."""
    interfaces = {name for _, name in socket.if_nameindex()} & {"lo", "lo0"}
    for interface in interfaces:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)


def backend_device() -> torch.device:
    """Return the device type of tensors in collectives."""
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")


def own_store(prefix: str) -> c10d.Store:
    """Return the group's store for use in a thread, with a separate connection (torch 2.7 and
    later): on a shared connection the thread is blocked while the main thread waits.
    """
    store = c10d._get_default_store()
    clone = getattr(store, "clone", None)
    return c10d.PrefixStore(prefix, clone() if clone is not None else store)


def leave() -> None:
    if initialized():
        # gloo's threads need the interpreter's lock to free the tensors of the last collective.
        # torch 2.6 holds the lock while it waits for these threads: a deadlock.
        time.sleep(0.1)
        dist.destroy_process_group()


def neighbours(size: int) -> Group | None:
    """Make this rank's group of `size` consecutive ranks; None means all ranks.

    Collective: every rank takes part in making every group.
    """
    if size <= 0 or size >= world_size():
        return None
    if world_size() % size:
        raise LaunchError(
            f"{world_size()} ranks cannot be split into groups of {size}: the group size "
            f"(MODEL.SYNC_BN_CONFIG.GROUP_SIZE) must divide the number of ranks."
        )
    mine = None
    for first in range(0, world_size(), size):
        members = list(range(first, first + size))
        group = dist.new_group(members)
        if rank() in members:
            mine = group
    return cast(Group, mine)


def keep_record(run_dir: Path) -> Path | None:
    """Write the last collectives of this rank of a failed run, and the stacks of its threads.

    To `flight_recorder/rank<N>.json`, a collective a line, and `.txt`. Return None with one
    process, and if writing fails: the run's own error is then the one to report.
    """
    if world_size() == 1:
        return None
    path = run_dir / "flight_recorder" / f"rank{rank()}.json"
    about = {"rank": rank(), "host": socket.gethostname(), "pid": os.getpid(), "at": time.time()}
    dump = getattr(_distributed_c10d, "_dump_fr_trace_json", lambda: "{}")  # since torch 2.8
    lines = [json.dumps(each) for each in (about, *json.loads(dump()).get("entries", []))]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        with path.with_suffix(".txt").open("w", encoding="utf-8") as stacks:
            faulthandler.dump_traceback(stacks, all_threads=True)
    except OSError as error:
        log.warning("could not write %s: %s", path, error)
        return None
    return path
