"""Ranks that the elastic agent starts: they find each other, and one's failure ends all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sslengine.distributed import process_group
from sslengine.distributed.collectives import barrier, sum_in_place
from sslengine.distributed.elastic import start_processes
from sslengine.distributed.ranks import rank
from sslengine.errors import ConfigError, LaunchError, Preempted


def _start(function: object, *arguments: object) -> None:
    start_processes(
        function, arguments, processes=2, nodes=1, node_id=0, endpoint="localhost:0",
        run_id="test",
    )  # fmt: skip


def _write_sum(folder: Path) -> None:
    process_group.join("gloo", torch.device("cpu"), timeout_minutes=1)
    total = sum_in_place(torch.tensor(rank() + 1)).item()
    (folder / f"rank{rank()}").write_text(str(total))
    process_group.leave()


def test_the_ranks_of_a_node_form_one_group(tmp_path: Path) -> None:
    _start(_write_sum, tmp_path)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {
        "rank0": "3",
        "rank1": "3",
    }


def _fail_on_rank_1(kind: str) -> None:
    process_group.join("gloo", torch.device("cpu"), timeout_minutes=10)
    if rank() == 1:
        if kind == "user":
            raise ConfigError("config.X: this is wrong")
        raise ValueError("a bug in the step")
    barrier()  # would wait for ten minutes


@pytest.mark.timeout(120)  # not the ten minutes after which the collective gives up
def test_a_users_error_is_told_without_a_traceback() -> None:
    with pytest.raises(LaunchError) as error:
        _start(_fail_on_rank_1, "user")
    assert str(error.value) == "rank 1 failed: config.X: this is wrong"


def test_a_bug_is_told_with_the_traceback_of_the_rank_that_failed_first() -> None:
    with pytest.raises(LaunchError) as error:
        _start(_fail_on_rank_1, "bug")
    text = str(error.value)
    assert text.startswith("rank 1 failed: ValueError: a bug in the step")
    assert "_fail_on_rank_1" in text


def _be_told() -> None:
    process_group.join("gloo", torch.device("cpu"), timeout_minutes=10)
    raise Preempted("stopped by a signal")


@pytest.mark.timeout(120)
def test_a_run_that_was_told_to_end_is_not_started_again() -> None:
    with pytest.raises(Preempted, match="The same command goes on"):
        _start(_be_told)
