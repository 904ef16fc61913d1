from __future__ import annotations

from pathlib import Path

import pytest

from sslengine.checkpoint import files
from sslengine.checkpoint.options import CheckpointOptions
from sslengine.checkpoint.resume import find, set_aside
from sslengine.distributed.ranks import rank
from sslengine.errors import CheckpointError
from tests.ranks import RankPool


def test_nothing_there_means_a_new_run(tmp_path: Path) -> None:
    assert find(tmp_path, CheckpointOptions()) is None


def test_the_newest_is_found(tmp_path: Path) -> None:
    files.write({"n": 1}, tmp_path, "model_phase0.torch")
    files.write({"n": 2}, tmp_path, "model_phase1.torch")
    assert find(tmp_path, CheckpointOptions()).state == {"n": 2}
    assert find(tmp_path, CheckpointOptions(LATEST_CHECKPOINT_RESUME_FILE_NUM=2)).state == {"n": 1}


def test_without_auto_resume_existing_work_is_not_trained_over(tmp_path: Path) -> None:
    files.write({"n": 1}, tmp_path, "model_phase0.torch")
    with pytest.raises(CheckpointError, match="AUTO_RESUME is false"):
        find(tmp_path, CheckpointOptions(AUTO_RESUME=False))
    assert find(tmp_path, CheckpointOptions(AUTO_RESUME=False, OVERWRITE_EXISTING=True)) is None


def test_set_aside_moves_and_loses_nothing(tmp_path: Path) -> None:
    assert set_aside(tmp_path) is None
    for number in (1, 2):
        files.write({"n": number}, tmp_path / "checkpoints", "model_phase0.torch")
        (tmp_path / "metrics.jsonl").write_text(f"{number}\n")
        (tmp_path / "metrics.csv").write_text(f"{number}\n")
        (tmp_path / "images").mkdir()
        (tmp_path / "notes.txt").write_text("the user's own")
        assert set_aside(tmp_path) == tmp_path / "earlier" / str(number)
    assert (tmp_path / "earlier" / "1" / "metrics.jsonl").read_text() == "1\n"
    assert files.newest(tmp_path / "earlier" / "2" / "checkpoints")[1] == {"n": 2}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["earlier", "notes.txt"]


def _find_on_every_rank(folder: Path) -> str:
    # Rank 1 looks at a folder that does not hold what rank 0 sees: it must follow rank 0.
    mine = folder if rank() == 0 else folder / "elsewhere"
    try:
        found = find(mine, CheckpointOptions())
    except CheckpointError as error:
        return str(error)
    return "new" if found is None else str(found.path)


def test_all_ranks_follow_rank_0(two_ranks: RankPool, tmp_path: Path) -> None:
    files.write({"n": 1}, tmp_path, "model_phase0.torch")
    assert (
        two_ranks.run(_find_on_every_rank, tmp_path) == [str(tmp_path / "model_phase0.torch")] * 2
    )
    (tmp_path / "model_phase0.torch").write_bytes(b"")
    for message in two_ranks.run(_find_on_every_rank, tmp_path):
        assert "none of the 1 checkpoints" in message
