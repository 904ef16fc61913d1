"""The last collectives of each rank and the stacks of its threads, in files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch._C import _distributed_c10d

from sslengine.distributed import process_group
from sslengine.distributed.collectives import sum_in_place
from sslengine.distributed.elastic import start_processes


def _keep(folder: Path) -> None:
    process_group.join("gloo", torch.device("cpu"), timeout_minutes=1)
    sum_in_place(torch.ones(3, 5))
    sum_in_place(torch.ones(7))
    assert process_group.keep_record(folder) is not None
    process_group.leave()


def test_what_was_reduced_last_is_last_and_stacks_name_the_function(tmp_path: Path) -> None:
    start_processes(_keep, (tmp_path,), processes=2, nodes=1, node_id=0, run_id="test")
    for rank in (0, 1):
        about, *entries = map(
            json.loads, (tmp_path / f"flight_recorder/rank{rank}.json").read_text().split("\n")[:-1]
        )
        assert about["rank"] == rank
        assert "in _keep" in (tmp_path / f"flight_recorder/rank{rank}.txt").read_text()
        if hasattr(_distributed_c10d, "_dump_fr_trace_json"):
            assert [each["input_sizes"] for each in entries[-2:]] == [[[3, 5]], [[7]]]
            assert all("all_reduce" in each["profiling_name"] for each in entries[-2:])


def test_a_disk_that_cannot_be_written_does_not_hide_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_group, "world_size", lambda: 2)
    (tmp_path / "flight_recorder").write_text("a file")
    assert process_group.keep_record(tmp_path) is None
