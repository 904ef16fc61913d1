from __future__ import annotations

import socket
from pathlib import Path

import pytest
import torch

from sslengine.distributed import process_group
from sslengine.distributed.collectives import sum_over_ranks
from sslengine.distributed.process_group import open_store
from sslengine.distributed.ranks import initialized, rank
from sslengine.errors import LaunchError
from tests.ranks import RankPool, free_port


def _sum_among_neighbours(size: int) -> float:
    group = process_group.neighbours(size)
    return sum_over_ranks(torch.tensor([10.0 ** rank()]), group).item()


def test_neighbours_are_consecutive_ranks(four_ranks: RankPool) -> None:
    assert four_ranks.run(_sum_among_neighbours, 2) == [11.0, 11.0, 1100.0, 1100.0]


@pytest.mark.parametrize("everyone", [0, -1, 4, 8])
def test_a_group_of_all_is_all(four_ranks: RankPool, everyone: int) -> None:
    assert four_ranks.run(_sum_among_neighbours, everyone) == [1111.0] * 4


def _bad_group() -> str:
    with pytest.raises(LaunchError) as error:
        process_group.neighbours(3)
    return str(error.value)


def test_a_group_size_that_does_not_divide_is_refused(four_ranks: RankPool) -> None:
    for message in four_ranks.run(_bad_group):
        assert "4 ranks cannot be split into groups of 3" in message
        assert "GROUP_SIZE" in message


def test_a_rank_that_does_not_come_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for name, value in {"RANK": "0", "WORLD_SIZE": "3", **place}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(LaunchError, match=r"1 of 3 ranks .*config.DISTRIBUTED.RENDEZVOUS_MIN"):
        process_group.join("gloo", torch.device("cpu"), 1, rendezvous_minutes=0.01)
    assert not initialized()


def test_a_port_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        with pytest.raises(LaunchError, match="cannot open .* MASTER_PORT"):
            open_store("127.0.0.1", taken.getsockname()[1], True, 1)


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
