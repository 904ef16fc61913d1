"""The last collectives of each rank and the stacks of its threads, in files."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
import torch
from torch._C import _distributed_c10d

from sslengine.distributed import process_group, ranks
from sslengine.distributed.collectives import sum_in_place, sum_over_ranks
from sslengine.distributed.elastic import start_processes
from sslengine.distributed.process_group import open_store
from sslengine.distributed.ranks import initialized, pick_device, rank
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


def _who() -> tuple[int, int, int, bool, bool]:
    return (
        ranks.rank(),
        ranks.world_size(),
        ranks.local_rank(),
        ranks.is_primary(),
        ranks.initialized(),
    )


def test_each_rank_knows_itself(two_ranks: RankPool) -> None:
    assert two_ranks.run(_who) == [(0, 2, 0, True, True), (1, 2, 1, False, True)]


def test_auto_takes_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert pick_device("auto") == pick_device("cpu") == torch.device("cpu")
    for name in ("gpu", "mps"):
        with pytest.raises(LaunchError, match=f"config.MACHINE.DEVICE is {name}"):
            pick_device(name)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert pick_device("auto") == pick_device("mps") == torch.device("mps")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert pick_device("auto") == torch.device("cpu")  # Apple's GPU is for one process


def test_more_ranks_than_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(LaunchError, match="has 2 GPUs.*NUM_PROC_PER_NODE=2"):
        pick_device("gpu")


def _keep(folder: Path) -> None:
    process_group.join("gloo", torch.device("cpu"), timeout_minutes=1)
    sum_in_place(torch.ones(3, 5))
    sum_in_place(torch.ones(7))
    assert process_group.keep_record(folder) is not None
    process_group.leave()


def test_what_was_reduced_last_is_last_and_stacks_name_the_function(tmp_path: Path) -> None:
    start_processes(_keep, (tmp_path,), processes=2, nodes=1, node_id=0, run_id="test")
    for number in (0, 1):
        about, *entries = map(
            json.loads,
            (tmp_path / f"flight_recorder/rank{number}.json").read_text().split("\n")[:-1],
        )
        assert about["rank"] == number
        assert "in _keep" in (tmp_path / f"flight_recorder/rank{number}.txt").read_text()
        if hasattr(_distributed_c10d, "_dump_fr_trace_json"):
            assert [each["input_sizes"] for each in entries[-2:]] == [[[3, 5]], [[7]]]
            assert all("all_reduce" in each["profiling_name"] for each in entries[-2:])


def test_a_disk_that_cannot_be_written_does_not_hide_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_group, "world_size", lambda: 2)
    (tmp_path / "flight_recorder").write_text("a file")
    assert process_group.keep_record(tmp_path) is None
