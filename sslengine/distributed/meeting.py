"""Rendezvous of processes on several nodes; the error for a timeout names the missing ones.

    place = meet("node1", range(40050, 40066), "job 17", who=2, of=4, minutes=10, noun="node")

torch's rendezvous uses one port and does not name the missing processes. Here number 0 opens a
store on the first free port, and the others look on the same ports for the store with their
token. So a port that another program or run uses has no effect. Keep `place.store` as long as
the processes may meet again.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from sslengine.errors import LaunchError

_POLL = 0.05  # seconds between two polls; doubled after each, up to
_LONGEST_POLL = 1.0
_ANSWER = 10.0  # seconds that a store may take to answer
_NAMED = 20  # missing processes that a message names
_BACKLOG = 2048  # pending connections: those of all ranks may arrive at the same time


@dataclass(frozen=True)
class Place:
    host: str
    port: int
    store: Store

    @property
    def endpoint(self) -> str:
        return f"{self.host}:{self.port}"


def meet(
    host: str, ports: Sequence[int], token: str, who: int, of: int, minutes: float, noun: str
) -> Place:
    """Wait for all processes (collective). `host` is the host of number 0."""
    place = find(host, ports, token, who, minutes, noun)
    wait_for_all(PrefixStore(token, place.store), who, of, 60 * minutes, noun)
    return place


def find(host: str, ports: Sequence[int], token: str, who: int, minutes: float, noun: str) -> Place:
    """Open the store (number 0), or wait until it is open (all others)."""
    until = time.monotonic() + 60 * minutes
    place = _open(host, ports, token, until) if who == 0 else _find(host, ports, token, until)
    if place is None:
        raise LaunchError(
            f"{noun} 0 did not open any of the ports {ports[0]} to {ports[-1]} on {host} within "
            f"{minutes:g} minutes (config.DISTRIBUTED.RENDEZVOUS_MINUTES): it was not started, or "
            f"{host} cannot be reached from {socket.gethostname()}."
        )
    return place


def wait_for_all(store: Store, who: int, of: int, seconds: float, noun: str) -> None:
    """Wait until all `of` processes have called this; on a timeout name the missing ones."""
    began = time.monotonic()
    pause = _POLL
    store.set(f"here/{who}", socket.gethostname())
    if store.add("count", 1) == of:  # then a single key shows that all are there
        store.set("all", "1")
    while not store.check(["all"]):
        if time.monotonic() - began > seconds:
            raise LaunchError(_missing(store, of, seconds, noun))
        time.sleep(pause)  # the store's own wait would block signal handlers
        pause = min(2 * pause, _LONGEST_POLL)


def _missing(store: Store, of: int, seconds: float, noun: str) -> str:
    missing = [str(each) for each in range(of) if not store.check([f"here/{each}"])]
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    many = "s" if len(missing) > 1 else ""
    return (
        f"{len(missing)} of {of} {noun}s did not connect within {seconds / 60:.3g} minutes "
        f"(config.DISTRIBUTED.RENDEZVOUS_MINUTES): {noun}{many} "
        f"{', '.join(missing[:_NAMED])}{more}. Check their output."
    )


def _open(host: str, ports: Sequence[int], token: str, until: float) -> Place:
    for port in ports:
        try:
            store = open_store(host, port, True, until - time.monotonic())
        except (RuntimeError, OSError) as error:
            if "EADDRINUSE" not in str(error):
                raise LaunchError(f"cannot open {host}:{port}: {error}") from error
            continue
        store.set(f"{token}/open", "1")
        return Place(host, port, store)
    if len(ports) == 1:
        raise LaunchError(
            f"port {ports[0]} is in use on {socket.gethostname()}: set another one on all nodes "
            f"with config.DISTRIBUTED.RUN_ID=host:port."
        )
    raise LaunchError(f"ports {ports[0]} to {ports[-1]} are all in use on {socket.gethostname()}.")


def _find(host: str, ports: Sequence[int], token: str, until: float) -> Place | None:
    pause = _POLL
    while time.monotonic() < until:
        for port in ports:
            store = _store_at(host, port)
            if store is not None and store.check([f"{token}/open"]):
                return Place(host, port, store)
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_POLL)
    return None


def _store_at(host: str, port: int) -> TCPStore | None:
    """The store that is open at this port. A thread connects to it, since torch waits for ever
    for a server that accepts the connection and never answers."""
    try:
        socket.create_connection((host, port), timeout=_ANSWER).close()
    except OSError:
        return None
    found: list[TCPStore] = []

    def connect() -> None:
        with contextlib.suppress(RuntimeError):  # another kind of server answers
            found.append(open_store(host, port, False, _ANSWER))

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(_ANSWER)
    return found[0] if found else None


def is_loopback(host: str) -> bool:
    """Is the host reachable from this machine only?"""
    return host == "localhost" or host.startswith("127.")


def open_store(host: str, port: int, mine: bool, seconds: float) -> TCPStore:
    """mine: this process holds the store; otherwise it connects to one. port 0: any free port.

    Torch listens on all interfaces, and anyone who can connect to a store can write to it. So
    for `localhost` the socket is made here, and listens on that interface only.
    """
    listener = _listen(port) if mine and is_loopback(host) else None
    if listener is not None:
        port = listener.getsockname()[1]
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


def _listen(port: int) -> socket.socket | None:
    """None: the port is in use. If a store of this process uses it, torch shares that store."""
    try:
        return socket.create_server(("127.0.0.1", port), backlog=_BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return None
        raise
