from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch

from sslengine.checkpoint import files
from sslengine.errors import CheckpointError

STATE = {"weights": torch.arange(3.0), "step": 7, "names": ["a", "b"], "nested": {"x": (1, 2)}}


def _age(path: Path, seconds: int) -> None:
    os.utime(path, (seconds, seconds))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = files.write(STATE, tmp_path / "new" / "folder", "model_phase0.torch")
    loaded = files.read(path)
    assert torch.equal(loaded["weights"], STATE["weights"])
    assert {key: loaded[key] for key in ("step", "names", "nested")} == {
        "step": 7,
        "names": ["a", "b"],
        "nested": {"x": (1, 2)},
    }


def test_the_pointer_follows_and_nothing_temporary_stays(tmp_path: Path) -> None:
    files.write(STATE, tmp_path, "model_phase0.torch")
    files.write(STATE, tmp_path, "model_phase1.torch")
    assert os.readlink(tmp_path / files.POINTER) == "model_phase1.torch"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint.torch",
        "model_phase0.torch",
        "model_phase1.torch",
    ]


def test_a_write_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = files.write(STATE, tmp_path, "model_phase0.torch")
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(CheckpointError, match=r"cannot write .*model_phase0.*No space left"):
        files.write({}, tmp_path, "model_phase0.torch")
    assert path.read_bytes() == before
    assert not list(tmp_path.glob("*.tmp")) + list(tmp_path.glob(".*.tmp"))


def test_newest_is_what_the_pointer_says_then_by_time(tmp_path: Path) -> None:
    for name, seconds in (("model_phase2.torch", 300), ("model_iteration9.torch", 200)):
        files.write({"name": name}, tmp_path, name)
        _age(tmp_path / name, seconds)
    # The pointer was set last by model_iteration9, though the other file is newer.
    assert [path.name for path in files.in_order(tmp_path)] == [
        "model_iteration9.torch",
        "model_phase2.torch",
    ]
    found = files.newest(tmp_path)
    assert found is not None
    assert found[1] == {"name": "model_iteration9.torch"}
    assert files.newest(tmp_path, position=2)[1] == {"name": "model_phase2.torch"}


@pytest.mark.parametrize("harm", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"\0" * 100])
def test_a_broken_newest_is_skipped_with_a_word(
    tmp_path: Path, harm: object, caplog: pytest.LogCaptureFixture
) -> None:
    files.write({"name": "good"}, tmp_path, "model_phase0.torch")
    broken = files.write(STATE, tmp_path, "model_phase1.torch")
    broken.write_bytes(harm(broken.read_bytes()))
    path, state = files.newest(tmp_path)
    assert (path.name, state) == ("model_phase0.torch", {"name": "good"})
    assert "skipped" in caplog.text
    assert "model_phase1.torch" in caplog.text
    assert broken.exists()


def test_if_none_can_be_read_the_run_must_not_start_from_zero(tmp_path: Path) -> None:
    (tmp_path / "model_phase0.torch").write_bytes(b"")
    with pytest.raises(CheckpointError, match="none of the 1 checkpoints"):
        files.newest(tmp_path)


def test_an_empty_or_missing_folder_has_none(tmp_path: Path) -> None:
    assert files.newest(tmp_path) is None
    assert files.newest(tmp_path / "not there") is None


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no checkpoint at"):
        files.read(tmp_path / "model_phase0.torch")


class _Hostile:
    def __reduce__(self) -> tuple[object, ...]:
        return (os.system, ("touch code_was_run",))


def test_reading_never_runs_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"x": _Hostile()}, tmp_path / "model_phase0.torch")
    with pytest.raises(CheckpointError, match="not a whole checkpoint"):
        files.read(tmp_path / "model_phase0.torch")
    (tmp_path / "old.torch").write_bytes(pickle.dumps(_Hostile(), protocol=2))
    with pytest.raises(CheckpointError):
        files.read(tmp_path / "old.torch")
    assert not (tmp_path / "code_was_run").exists()


def test_something_that_is_no_checkpoint(tmp_path: Path) -> None:
    torch.save([1, 2], tmp_path / "list.torch")
    with pytest.raises(CheckpointError, match="holds list"):
        files.read(tmp_path / "list.torch")
