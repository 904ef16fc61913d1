from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sslengine.checkpoint import files
from sslengine.checkpoint.manifest import Manifest, verify
from sslengine.errors import CheckpointError

STATE = {"weights": torch.arange(3.0), "step": 7, "names": ["a", "b"], "nested": {"x": (1, 2)}}


def _age(path: Path, seconds: int) -> None:
    os.utime(path, (seconds, seconds))


def test_the_pointer_follows_and_nothing_temporary_stays(tmp_path: Path) -> None:
    files.write(STATE, tmp_path, "model_phase0.torch")
    files.write(STATE, tmp_path, "model_phase1.torch")
    assert os.readlink(tmp_path / files.POINTER) == "model_phase1.torch"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint.torch",
        "model_phase0.json",
        "model_phase0.torch",
        "model_phase1.json",
        "model_phase1.torch",
    ]


def test_a_write_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write(STATE, tmp_path, "model_phase0.torch")
    path = tmp_path / "model_phase0.torch"
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(CheckpointError, match=r"cannot write .*model_phase0.*No space left"):
        files.write({}, tmp_path, "model_phase0.torch")
    assert path.read_bytes() == before
    verify(path)
    assert not list(tmp_path.glob("*.tmp")) + list(tmp_path.glob(".*.tmp"))


def test_newest_is_that_of_the_highest_number_whatever_the_pointer_says(tmp_path: Path) -> None:
    """A run may be killed after a checkpoint has its name and before the pointer is set."""
    for number, name in ((2, "model_phase2"), (3, "model_phase3"), (1, "model_iteration9")):
        files.write({"name": name}, tmp_path, f"{name}.torch", {"number": number})
        _age(tmp_path / f"{name}.torch", 100 * number)
    # The pointer was set last to model_iteration9. Copies of files have any age.
    _age(tmp_path / "model_phase2.torch", 900)
    assert [path.stem for path in files.list_checkpoints(tmp_path)] == [
        "model_phase3",
        "model_phase2",
        "model_iteration9",
    ]
    assert files.newest(tmp_path)[1] == {"name": "model_phase3"}
    assert files.newest(tmp_path, position=2)[1] == {"name": "model_phase2"}


def test_the_power_goes_between_the_name_and_the_pointer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write({"n": 1}, tmp_path, "model_phase0.torch", {"number": 1})

    def cut(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "point_to", cut)
    with pytest.raises(KeyboardInterrupt):
        files.write({"n": 2}, tmp_path, "model_phase1.torch", {"number": 2})
    assert os.readlink(tmp_path / files.POINTER) == "model_phase0.torch"
    assert files.newest(tmp_path)[1] == {"n": 2}


def _dangling(folder: Path) -> None:
    (folder / "model_phase7.torch").symlink_to("nowhere")
    Manifest("model_phase7.torch", 1, "0", number=9).write(folder)


def _wrong_types(folder: Path) -> None:
    files.write({}, folder, "model_phase7.torch", {"number": "nine"})


def _of_another(folder: Path) -> None:
    files.write({}, folder, "model_phase7.torch", {"number": 9})
    (folder / "model_phase7.json").write_bytes((folder / "model_phase0.json").read_bytes())


def _a_folder(folder: Path) -> None:
    (folder / "model_phase7.torch").mkdir()
    Manifest("model_phase7.torch", 1, "0", number=9).write(folder)


def _a_pipe(folder: Path) -> None:
    os.mkfifo(folder / "model_phase7.torch")
    Manifest("model_phase7.torch", 1, "0", number=9).write(folder)


def _a_pipe_for_manifest(folder: Path) -> None:
    (folder / "model_phase7.torch").write_bytes(b"")
    os.mkfifo(folder / "model_phase7.json")


@pytest.mark.parametrize(
    "harm",
    [_dangling, _wrong_types, _of_another, _a_folder, _a_pipe, _a_pipe_for_manifest],
    ids=lambda each: each.__name__,
)
def test_junk_under_a_checkpoints_name_is_named_and_skipped(
    tmp_path: Path, harm: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    files.write({"n": 1}, tmp_path, "model_phase0.torch", {"number": 1})
    harm(tmp_path)
    assert files.newest(tmp_path)[1] == {"n": 1}
    assert [("skipped" in text, "model_phase7" in text) for text in caplog.messages] == [
        (True,) * 2
    ]


def test_all_weights_in_one_file_beside_the_shards_are_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "model_phase0.torch").write_bytes(b"weights")
    assert [path.name for path in files.list_checkpoints(tmp_path)] == ["model_phase0.torch"]
    (tmp_path / "model_phase0.2.shards").mkdir()
    assert [path.name for path in files.list_checkpoints(tmp_path)] == ["model_phase0.2.shards"]


def test_leftovers_of_a_killed_run_are_removed_and_nothing_else(tmp_path: Path) -> None:
    files.write(STATE, tmp_path, "model_phase0.torch")
    before = sorted(tmp_path.iterdir())
    (tmp_path / ".model_phase1.torch.99.tmp").write_bytes(b"half")
    (tmp_path / ".checkpoint.torch.99.tmp").symlink_to("model_phase1.torch")
    (tmp_path / ".model_phase1.shards.tmp").mkdir()
    (tmp_path / ".the user's.tmp").write_text("mine")
    before = sorted([*before, tmp_path / ".the user's.tmp"])
    files.remove_leftovers(tmp_path)
    files.remove_leftovers(tmp_path / "not there")
    assert sorted(tmp_path.iterdir()) == before


def test_too_little_space_is_known_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=11)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(CheckpointError, match=r"needs [1-9].* and 11 bytes are free.*KEEP_LAST"):
        files.write(STATE, tmp_path, "model_phase0.torch")
    assert not list(tmp_path.iterdir())


def _flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1 :]


@pytest.mark.parametrize(
    "harm", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"\0" * 100, _flip]
)
def test_a_broken_newest_is_skipped_with_a_word(
    tmp_path: Path, harm: object, caplog: pytest.LogCaptureFixture
) -> None:
    files.write({"name": "good"}, tmp_path, "model_phase0.torch")
    files.write(STATE, tmp_path, "model_phase1.torch")
    broken = tmp_path / "model_phase1.torch"
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


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no file"):
        files.read(tmp_path / "model_phase0.torch")


class _Hostile:
    def __reduce__(self) -> tuple[object, ...]:
        return (os.system, ("touch code_was_run",))


def test_reading_never_runs_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"x": _Hostile()}, tmp_path / "model_phase0.torch")
    with pytest.raises(
        CheckpointError, match=r"holds an object of posix\.system, .*no code was run"
    ):
        files.read(tmp_path / "model_phase0.torch")
    (tmp_path / "old.torch").write_bytes(pickle.dumps(_Hostile(), protocol=2))
    with pytest.raises(CheckpointError):
        files.read(tmp_path / "old.torch")
    assert not (tmp_path / "code_was_run").exists()


def test_something_that_is_no_checkpoint(tmp_path: Path) -> None:
    torch.save([1, 2], tmp_path / "list.torch")
    with pytest.raises(CheckpointError, match="holds list"):
        files.read(tmp_path / "list.torch")
