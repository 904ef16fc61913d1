"""Runs that resume from these: tests/integration/test_sharded_resume.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sslengine.checkpoint import files, sharded
from sslengine.checkpoint.manifest import read_manifest, verify
from sslengine.checkpoint.options import CheckpointOptions
from sslengine.checkpoint.retention import remove_surplus
from sslengine.checkpoint.saver import Saver
from sslengine.checkpoint.snapshot import copy_to_host
from sslengine.distributed.ranks import is_primary, rank
from sslengine.distributed.shard_files import Peers, read_folder
from sslengine.errors import CheckpointError
from tests.distributed.test_shard_files import rows, state
from tests.ranks import RankPool


def _write(folder: Path, *names: str) -> list[str]:
    peers = Peers()
    return [
        sharded.write(copy_to_host(state()), folder, f"{name}.torch", {"number": n}, peers).file
        for n, name in enumerate(names, start=1)
    ]


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_folder_with_its_manifest(two_ranks: RankPool, tmp_path: Path) -> None:
    assert two_ranks.run(_write, tmp_path, "model_phase0") == [["model_phase0.shards"]] * 2
    assert _names(tmp_path) == {"model_phase0.shards", "model_phase0.shards.json", files.POINTER}
    manifest = verify(tmp_path / "model_phase0.shards")
    assert set(manifest.files) == {"__0_0.distcp", "__1_0.distcp", ".metadata", "rest.torch"}
    assert manifest.bytes == sum(
        path.stat().st_size for path in (tmp_path / "model_phase0.shards").iterdir()
    )
    read = files.read(tmp_path / files.POINTER)
    assert torch.equal(read["model"]["a.weight"], rows(5))


def test_the_same_name_again_never_leaves_nothing(two_ranks: RankPool, tmp_path: Path) -> None:
    name = "model_iteration4"
    assert two_ranks.run(_write, tmp_path, name, name, name)[0] == [
        f"{name}.shards", f"{name}.2.shards", f"{name}.shards"
    ]  # fmt: skip
    assert _names(tmp_path) == {f"{name}.shards", f"{name}.shards.json", files.POINTER}
    assert read_manifest(tmp_path / f"{name}.shards").number == 3


def test_order_pointer_and_retention(two_ranks: RankPool, tmp_path: Path) -> None:
    two_ranks.run(_write, tmp_path, "model_phase0", "model_phase1", "model_iteration9")
    assert [path.stem for path in files.list_checkpoints(tmp_path)] == [
        "model_iteration9", "model_phase1", "model_phase0"
    ]  # fmt: skip
    remove_surplus(tmp_path, CheckpointOptions(KEEP_LAST=1))
    assert _names(tmp_path) == {
        "model_iteration9.shards", "model_iteration9.shards.json", files.POINTER
    }  # fmt: skip


def _fail_on(culprit: int, folder: Path) -> list[str]:
    """A disk that is full for one rank; then there is room again."""
    peers, real = Peers(), sharded.write_folder

    def full(*arguments: Any) -> list[str]:
        names = real(*arguments)
        if rank() == culprit:
            raise OSError(28, "No space left on device")
        return names

    sharded.write_folder = full  # type: ignore[assignment]
    try:
        sharded.write(copy_to_host(state()), folder, "model_phase1.torch", {"number": 2}, peers)
    except CheckpointError as error:
        said = str(error)
    finally:
        sharded.write_folder = real
    there = sorted(path.name for path in folder.iterdir())
    peers.agree(lambda: None)
    sharded.write(copy_to_host(state()), folder, "model_phase1.torch", {"number": 2}, peers)
    return [said, str([name for name in there if not name.startswith(".")])]


@pytest.mark.parametrize("culprit", [0, 1])
def test_a_save_that_fails_leaves_the_one_before(
    two_ranks: RankPool, tmp_path: Path, culprit: int
) -> None:
    two_ranks.run(_write, tmp_path, "model_phase0")
    for said, there in two_ranks.run(_fail_on, culprit, tmp_path):
        assert "cannot write the checkpoint" in said
        assert "No space left on device" in said
        assert "Earlier checkpoints in the folder are unchanged" in said
        assert "phase1" not in there
    found = files.newest(tmp_path)
    assert found is not None
    assert found[0].name == "model_phase1.shards"


def _elsewhere(folder: Path) -> str:
    """Each rank with a folder of its own, as on nodes that share no disk."""
    try:
        sharded.write(
            copy_to_host(state()), folder / str(rank()), "model_phase0.torch", {}, Peers()
        )
    except CheckpointError as error:
        return str(error)
    return ""


def test_ranks_need_one_folder(two_ranks: RankPool, tmp_path: Path) -> None:
    for said in two_ranks.run(_elsewhere, tmp_path):
        assert "must be the same folder on all ranks" in said


def _with_saver(folder: Path, options: CheckpointOptions) -> list[str]:
    saver = Saver(folder, options)
    saver.peers = Peers()
    for number in range(3):
        saver.save(state(), f"model_phase{number}.torch", {"results": {}}, last=number == 2)
    saver.finish()
    saver.peers.agree(lambda: None)
    return sorted(path.name for path in folder.iterdir()) if is_primary() else []


@pytest.mark.parametrize("whole", [True, False])
def test_the_thread_the_surplus_and_one_file_at_the_end(
    two_ranks: RankPool, tmp_path: Path, whole: bool
) -> None:
    options = CheckpointOptions(KEEP_LAST=1, WHOLE_AT_END=whole)
    names, _ = two_ranks.run(_with_saver, tmp_path, options)
    expected = {files.POINTER, "model_phase2.shards", "model_phase2.shards.json"}
    assert set(names) == (expected | {"model_phase2.torch"} if whole else expected)
    if whole:
        content = torch.load(tmp_path / "model_phase2.torch", weights_only=True)
        assert torch.equal(content["model"]["a.weight"], rows(5))
        assert "optimizer" not in content
        assert "optimizer" in read_folder(tmp_path / "model_phase2.shards")
