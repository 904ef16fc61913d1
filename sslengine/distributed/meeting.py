"""Processes on several nodes find each other, and who does not come is named.

    place = meet("node1", range(40050, 40066), "job 17", who=2, of=4, minutes=10, noun="node")

torch's own ways to meet take one port, and count the missing without naming them. Here number 0
opens a store on the first of the ports that is free; the others look at the same ports for the
store that has their token, so a port which another program (or another run) uses does not matter.
`place.store` must be kept for as long as they may meet again.
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

_LOOK = 0.05  # seconds; between two looks it doubles up to
_LOOK_AT_MOST = 1.0
_ANSWER = 10.0  # seconds that a store may take to answer
_NAMED = 20  # of the missing
_BACKLOG = 2048  # connections that wait to be taken: those of all ranks may come at once


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
    """Collective: comes back when all have come. `host` is number 0's."""
    place = find(host, ports, token, who, minutes, noun)
    wait_for_all(PrefixStore(token, place.store), who, of, 60 * minutes, noun)
    return place


def find(host: str, ports: Sequence[int], token: str, who: int, minutes: float, noun: str) -> Place:
    """Where to meet, as soon as number 0 is there."""
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
    pause = _LOOK
    store.set(f"here/{who}", socket.gethostname())
    if store.add("count", 1) == of:  # one key to look at, however many they are
        store.set("all", "1")
    while not store.check(["all"]):
        if time.monotonic() - began > seconds:
            raise LaunchError(_missing(store, of, seconds, noun))
        time.sleep(pause)  # not the store's own wait: signals would not be heard in it
        pause = min(2 * pause, _LOOK_AT_MOST)


def _missing(store: Store, of: int, seconds: float, noun: str) -> str:
    missing = [str(each) for each in range(of) if not store.check([f"here/{each}"])]
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    many = "s" if len(missing) > 1 else ""
    return (
        f"{len(missing)} of {of} {noun}s did not come within {seconds / 60:.3g} minutes "
        f"(config.DISTRIBUTED.RENDEZVOUS_MINUTES): {noun}{many} "
        f"{', '.join(missing[:_NAMED])}{more}. Look at what they print."
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
            f"port {ports[0]} is in use on {socket.gethostname()}: give all nodes another one "
            f"in config.DISTRIBUTED.RUN_ID=host:port."
        )
    raise LaunchError(f"ports {ports[0]} to {ports[-1]} are all in use on {socket.gethostname()}.")


def _find(host: str, ports: Sequence[int], token: str, until: float) -> Place | None:
    pause = _LOOK
    while time.monotonic() < until:
        for port in ports:
            store = _look_at(host, port)
            if store is not None and store.check([f"{token}/open"]):
                return Place(host, port, store)
        time.sleep(pause)
        pause = min(2 * pause, _LOOK_AT_MOST)
    return None


def _look_at(host: str, port: int) -> TCPStore | None:
    """The store that is open there. In a thread: torch waits for ever for a server that takes
    the connection and never answers."""
    try:
        socket.create_connection((host, port), timeout=_ANSWER).close()
    except OSError:
        return None
    found: list[TCPStore] = []

    def connect() -> None:
        with contextlib.suppress(RuntimeError):  # something else answers
            found.append(open_store(host, port, False, _ANSWER))

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(_ANSWER)
    return found[0] if found else None


def is_loopback(host: str) -> bool:
    """Can only this machine reach it?"""
    return host == "localhost" or host.startswith("127.")


def open_store(host: str, port: int, mine: bool, seconds: float) -> TCPStore:
    """mine: held by this process, and shared within it; else by another. Port 0: a free one.

    Torch listens on all interfaces, and anyone who reaches a store can write to it; so at
    `localhost` the socket is made here, and listens there alone.
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
        # Its newer server takes no socket that another has opened, before torch 2.8.
        use_libuv=listener is None or torch.__version__ >= "2.8",
    )


def _listen(port: int) -> socket.socket | None:
    """None: the port is taken. If a store of this process has it, torch shares that one."""
    try:
        return socket.create_server(("127.0.0.1", port), backlog=_BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return None
        raise
