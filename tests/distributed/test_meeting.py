"""Who is to meet does so in spite of taken ports, or the missing are named."""

from __future__ import annotations

import multiprocessing
import socket
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from sslengine.distributed.meeting import is_loopback, meet, open_store
from sslengine.errors import LaunchError
from tests.ranks import free_port


def _come(pipe: Connection, ports: list[int], who: int, of: int, minutes: float) -> None:
    try:
        place = meet("127.0.0.1", ports, "mine", who, of, minutes, noun="node")
        pipe.send(place.port)
        pipe.recv()  # the store stays until all have said that they came
    except LaunchError as error:
        pipe.send(str(error))


def _meet(ports: list[int], present: list[int], of: int, minutes: float) -> list[object]:
    """What each of those present gets: the port, or the error's text."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    pipes, processes = [], []
    try:
        for who in present:
            here, there = context.Pipe()
            processes.append(
                context.Process(target=_come, args=(there, ports, who, of, minutes), daemon=True)
            )
            processes[-1].start()
            pipes.append(here)
        answers = []
        for pipe in pipes:
            assert pipe.poll(120), "no answer"
            answers.append(pipe.recv())
        return answers
    finally:
        for process in processes:
            process.kill()
            process.join()


def test_they_meet_on_another_port_if_one_is_taken_by_another_run_or_by_something_else() -> None:
    first = free_port()
    ports = list(range(first, first + 3))
    other_run = TCPStore("127.0.0.1", ports[0], is_master=True, wait_for_workers=False)
    other_run.set("theirs/open", "1")
    with socket.socket() as silent:  # takes connections and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        ports[1] = silent.getsockname()[1]
        assert _meet(ports, [0, 1], of=2, minutes=2) == [ports[2], ports[2]]


def test_the_missing_are_named() -> None:
    (text,) = _meet([free_port()], [0], of=4, minutes=0.01)
    assert str(text).startswith("3 of 4 nodes did not connect within 0.01 minutes")
    assert "nodes 1, 2, 3." in str(text)


def test_the_first_one_is_missing() -> None:
    port = free_port()
    (text,) = _meet([port], [1], of=2, minutes=0.01)
    assert str(text).startswith(f"node 0 did not open any of the ports {port} to {port}")


def test_a_port_that_was_given_and_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        with pytest.raises(LaunchError, match="is in use on .* set another one on all nodes"):
            meet("127.0.0.1", [taken.getsockname()[1]], "mine", 0, 2, 0.1, noun="node")


def _listening(port: int) -> set[str]:
    """Addresses on which something listens on the port, in the kernel's digits."""
    tables = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
    rows = [line.split() for table in tables for line in table.read_text().splitlines()[1:]]
    return {
        row[1].split(":")[0] for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")
    }


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="Linux tells who listens")
def test_the_store_of_one_machine_is_not_on_its_network() -> None:
    store = open_store("localhost", 0, True, 10)
    assert _listening(store.port) == {"0100007F"}
    again = open_store("localhost", store.port, True, 10)  # of the same process: shared
    other = open_store("localhost", store.port, False, 10)
    other.set("key", "value")
    assert again.get("key") == b"value"
    assert _listening(store.port) == {"0100007F"}


def test_what_only_this_machine_reaches() -> None:
    hosts = ("localhost", "127.0.0.1", "127.0.1.1", "node1", "10.0.0.1", "0.0.0.0")
    assert [is_loopback(host) for host in hosts] == [True, True, True, False, False, False]
