"""Sharded runs that are stopped and resume, on as many ranks or on others."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from sslengine.checkpoint.files import POINTER, read
from sslengine.checkpoint.options import CheckpointOptions
from sslengine.checkpoint.resume import find
from sslengine.distributed.ranks import world_size
from sslengine.distributed.shard_files import Peers
from sslengine.engine import loop
from sslengine.engine.checkpointing import SaveCheckpoints
from tests.engine.runs import Stop, Watch, make_task
from tests.engine.sharded import (
    CROPS,
    SHARDED,
    SMALL_VIT,
    Outcome,
    assert_close,
    needs_shards,
    on_ranks,
    outcome,
)  # fmt: skip
from tests.ranks import RankPool
from tests.tail import slow_but

pytestmark = needs_shards
ADAM = {"OPTIMIZER__name": "adamw", "OPTIMIZER__param_schedulers__lr__start_value": 0.001}
DINO: dict[str, Any] = {
    **SMALL_VIT,
    **CROPS,
    **ADAM,
    "MODEL__HEAD__PARAMS": [["dino_head", {"in_dim": 18, "num_clusters": [10],
                                           "hidden_dim": 12, "bottleneck_dim": 6}]],
    "LOSS__name": "dino_loss",
    "LOSS__dino_loss__momentum": 0.8,
    "DATA__TRAIN__DATA_LIMIT": 24,
}  # fmt: skip
RANDOM = {**DINO["MODEL__TRUNK"]["VISION_TRANSFORMERS"], "DROP_PATH_RATE": 0.4, "DROPOUT_RATE": 0.1}
DROPPING = {**DINO, "MODEL__TRUNK": {**DINO["MODEL__TRUNK"], "VISION_TRANSFORMERS": RANDOM}}
LARC = {"MODEL__TRUNK": {}, "DATA__TRAIN__DATA_LIMIT": 24, "OPTIMIZER__use_larc": True}
SAVES = CheckpointOptions(CHECKPOINT_ITER_FREQUENCY=1, KEEP_LAST=2)


def start(folder: Path, changes: dict[str, Any], stop_after: int | None = None) -> Outcome:
    """Trains from the newest checkpoint of the folder, and saves after each step."""
    checkpoints, watch = folder / "checkpoints", Watch(stop_after)
    hooks = [SaveCheckpoints(checkpoints, SAVES), watch]
    task = make_task(folder, hooks, **on_ranks(changes, world_size()))
    found = find(checkpoints, SAVES, task.peers)
    if found is not None:
        task.set_classy_state(found.state["classy_state_dict"])
    try:
        loop.run(task)
    except Stop:
        assert stop_after
    return outcome(task, watch)


@pytest.mark.parametrize(
    ("changes", "after"),
    [
        pytest.param(DROPPING, 2, id="dino, in the first epoch"),
        pytest.param(
            LARC,
            4,
            id="simclr with larc and batch norms, in the second epoch",
            marks=pytest.mark.slow,
        ),
        pytest.param(DROPPING, 4, id="dino, in the second epoch", marks=pytest.mark.slow),
    ],
)
def test_bit_by_bit_on_as_many_ranks(
    two_ranks: RankPool, tmp_path: Path, changes: dict[str, Any], after: int
) -> None:
    sharded = {**changes, **SHARDED}
    sharded = {key: value for key, value in sharded.items() if value != {}}
    whole = two_ranks.run(start, tmp_path / "whole", sharded)
    two_ranks.run(start, tmp_path / "cut", sharded, after)
    resumed = two_ranks.run(start, tmp_path / "cut", sharded)
    for one, other in zip(resumed, whole, strict=True):
        assert len(one.losses) == 6 - after
        assert one.losses == other.losses[after:]
        for mine, theirs in ((one.weights, other.weights), (one.loss_state, other.loss_state)):
            assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return start(tmp_path_factory.mktemp("alone"), DINO)


def _goes_on(resumed: list[Outcome], alone: Outcome) -> None:
    for each in resumed:
        rest = alone._replace(losses=alone.losses[-len(each.losses) :])
        assert len(each.losses) == 4
        assert_close(each, rest, rtol=1e-4, atol=1e-6)


@pytest.fixture(scope="module")
def cut_in_two(two_ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run in two shards that was stopped after two of six steps."""
    folder = tmp_path_factory.mktemp("cut")
    two_ranks.run(start, folder, {**DINO, **SHARDED}, 2)
    return folder


@pytest.fixture
def cut(cut_in_two: Path, tmp_path: Path) -> Path:
    shutil.copytree(cut_in_two, tmp_path / "cut", symlinks=True)
    return tmp_path / "cut"


@pytest.mark.slow
def test_from_two_to_four(four_ranks: RankPool, cut: Path, alone: Outcome) -> None:
    _goes_on(four_ranks.run(start, cut, {**DINO, **SHARDED}), alone)


@pytest.mark.parametrize("sharded", [{}, SHARDED], ids=["plain", "sharded"])
def test_from_two_to_one(cut: Path, alone: Outcome, sharded: dict[str, Any]) -> None:
    _goes_on([start(cut, {**DINO, **sharded})], alone)


@pytest.mark.slow
def test_from_shards_to_ddp(two_ranks: RankPool, cut: Path, alone: Outcome) -> None:
    _goes_on(two_ranks.run(start, cut, DINO), alone)


@pytest.mark.slow
def test_from_one_to_two(two_ranks: RankPool, tmp_path: Path, alone: Outcome) -> None:
    start(tmp_path, DINO, 2)
    _goes_on(two_ranks.run(start, tmp_path, {**DINO, **SHARDED}), alone)


def test_from_ddp_to_shards(two_ranks: RankPool, tmp_path: Path, alone: Outcome) -> None:
    two_ranks.run(start, tmp_path, DINO, 2)
    _goes_on(two_ranks.run(start, tmp_path, {**DINO, **SHARDED}), alone)


def _read_shares(path: Path) -> tuple[int, int]:
    """Elements of the trunk on this rank, and in all."""
    trunk = read(path, Peers())["classy_state_dict"]["base_model"]["model"]["trunk"]
    return (
        sum(each.to_local().numel() for each in trunk.values()),
        sum(each.numel() for each in trunk.values()),
    )


def test_no_rank_reads_the_whole(two_ranks: RankPool, cut: Path) -> None:
    results = two_ranks.run(_read_shares, cut / "checkpoints" / POINTER)
    assert sum(held for held, _ in results) == results[0][1]
    assert max(held for held, _ in results) < 0.6 * results[0][1]


@pytest.mark.slow
def test_what_lies_in_the_folder(two_ranks: RankPool, tmp_path: Path) -> None:
    two_ranks.run(start, tmp_path, {**DINO, **SHARDED})
    checkpoints = tmp_path / "checkpoints"
    assert sorted(path.name for path in checkpoints.iterdir()) == [
        "checkpoint.torch", "model_final_checkpoint_phase1.shards",
        "model_final_checkpoint_phase1.shards.json", "model_final_checkpoint_phase1.torch",
        "model_iteration5.shards", "model_iteration5.shards.json",
    ]  # fmt: skip
    final = checkpoints / POINTER
    assert sorted(path.name for path in final.iterdir()) == [
        ".metadata", "__0_0.distcp", "__1_0.distcp", "rest.torch"
    ]  # fmt: skip
    in_shards = read(final)
    in_one = read(checkpoints / "model_final_checkpoint_phase1.torch")
    assert "optimizer" not in in_one["classy_state_dict"]
    for key in ("trunk", "heads"):
        one = in_one["classy_state_dict"]["base_model"]["model"][key]
        other = in_shards["classy_state_dict"]["base_model"]["model"][key]
        assert all(torch.equal(one[name], other[name]) for name in other)
    assert in_one["loss"].keys() == in_shards["loss"].keys()


@pytest.mark.parametrize("harm", slow_but(["flipped"], ["missing", "short", "flipped", "rest"]))
def test_a_broken_shard_costs_only_its_steps(
    two_ranks: RankPool, cut: Path, harm: str, alone: Outcome, caplog: pytest.LogCaptureFixture
) -> None:
    newest = (cut / "checkpoints" / POINTER).resolve()
    assert newest.name == "model_iteration2.shards"
    shard = newest / ("rest.torch" if harm == "rest" else "__1_0.distcp")
    content = bytearray(shard.read_bytes())
    if harm == "missing":
        shard.unlink()
    elif harm == "short":
        shard.write_bytes(content[:-1])
    else:
        content[len(content) // 2] ^= 1
        shard.write_bytes(content)
    found = find(cut / "checkpoints", SAVES)
    assert found is not None
    assert found.path.name == "model_iteration1.shards"
    (told,) = (each for each in caplog.messages if "skipped" in each)
    assert told.startswith("skipped: ")
    assert shard.name in told
    assert "\n" not in told
    for each in two_ranks.run(start, cut, {**DINO, **SHARDED}):
        assert len(each.losses) == 5
        assert_close(each, alone._replace(losses=alone.losses[1:]), rtol=1e-4, atol=1e-6)


def test_a_run_of_zero_goes_on_in_one_process(
    two_ranks: RankPool, tmp_path: Path, alone: Outcome
) -> None:
    """Its former name is an alias of a sharded run."""
    zero = {**DINO, "OPTIMIZER__use_zero": True}
    two_ranks.run(start, tmp_path, zero, 2)
    _goes_on([start(tmp_path, zero)], alone)
