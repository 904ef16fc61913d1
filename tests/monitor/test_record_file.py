from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from sslengine.monitor.record_file import (
    SUPERSEDED,
    RecordFile,
    cut,
    cut_back,
    mark_of,
    move_aside,
    problem,
)


def _mark(content: bytes) -> dict[str, object]:
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def test_a_mark_is_the_length_and_the_hash_however_the_file_came_to_be(tmp_path: Path) -> None:
    path = tmp_path / "a"
    file = RecordFile(path)
    assert file.mark() == _mark(b"")
    for content in (b"one\n", b"one\ntwo\n", b"one\ntwo\n", b"one\n", b""):
        path.write_bytes(content)
        assert file.mark() == _mark(content)
    other = tmp_path / "b"
    other.write_bytes(b"longer than before\n")
    other.replace(path)  # another file under the same name
    assert file.mark() == _mark(b"longer than before\n")
    path.unlink()
    assert file.mark() == _mark(b"")


def test_only_what_is_new_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    file = RecordFile(path)
    path.write_bytes(b"one\n")
    file.mark()
    with path.open("rb+") as opened:
        opened.write(b"ONE\ntwo\n")  # the first bytes are not looked at again
    assert file.mark() == _mark(b"one\ntwo\n")


def test_what_came_after_the_mark_is_cut_off_and_kept_aside(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"one\ntwo\nthr")
    for _ in range(2):  # nothing is left to be cut by the second
        cut_back(path, _mark(b"one\n"), lambda line: True)
        assert path.read_bytes() == b"one\n"
        assert (tmp_path / SUPERSEDED / "a").read_bytes() == b"two\nthr"
    cut_back(path, _mark(b""), lambda line: True)
    assert path.read_bytes() == b""
    assert (tmp_path / SUPERSEDED / "a").read_bytes() == b"two\nthrone\n"


@pytest.mark.parametrize(
    ("now", "told", "left"),
    [
        (b"1\n", "it has 2 bytes, and had 4 at the checkpoint", b"1\n"),
        (None, "it has 0 bytes, and had 4 at the checkpoint", None),
        (b"0\n2\n3\n", "what it held at the checkpoint has changed", b"0\n2\n"),
    ],
)
def test_a_gap_is_reported_and_lines_decide(
    tmp_path: Path, now: bytes | None, told: str, left: bytes | None,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    path = tmp_path / "a"
    if now is not None:
        path.write_bytes(now)
    cut_back(path, _mark(b"1\n2\n"), lambda line: int(line) <= 2)
    assert told in caplog.text
    assert (path.read_bytes() if path.exists() else None) == left


def test_without_a_mark_lines_decide(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"1\n2\n3\n4")
    cut_back(path, None, lambda line: int(line) <= 2)
    assert path.read_bytes() == b"1\n2\n"
    assert (tmp_path / SUPERSEDED / "a").read_bytes() == b"3\n4"


def test_a_file_that_cannot_be_cut_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"one\ntwo\n")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sslengine.monitor.record_file.make_folder", full)
    cut_back(path, _mark(b"one\n"), lambda line: True)
    assert path.read_bytes() == b"one\ntwo\n"
    assert "cannot be cut back to the checkpoint: No space left" in caplog.text


@pytest.mark.parametrize(
    "marks",
    [None, {}, [], {"a": None}, {"a": {"bytes": 1}}, {"a": {"bytes": -1, "sha256": ""}},
     {"a": {"bytes": "1", "sha256": ""}}, {"a": {"bytes": 1, "sha256": 7}}],
)  # fmt: skip
def test_a_mark_that_makes_no_sense_is_none(marks: object) -> None:
    assert mark_of(marks, "a") is None


def test_files_in_folders_keep_their_place(tmp_path: Path) -> None:
    for name in ("x", "y"):
        (tmp_path / "logs").mkdir(exist_ok=True)
        (tmp_path / "logs" / name).write_bytes(b"12")
    cut(tmp_path / "logs" / "x", 1, tmp_path)
    move_aside(tmp_path / "logs" / "y", tmp_path)
    assert (tmp_path / "logs" / "x").read_bytes() == b"1"
    assert (tmp_path / SUPERSEDED / "logs" / "x").read_bytes() == b"2"
    assert (tmp_path / SUPERSEDED / "logs" / "y").read_bytes() == b"12"
    assert problem(tmp_path / "logs" / "x", _mark(b"1")) is None
