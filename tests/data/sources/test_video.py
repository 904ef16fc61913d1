"""Frames of videos that PyAV (FFmpeg) wrote; their brightness says which they are."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sslengine.command.front import main
from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.options import HoldOut, split_options
from sslengine.data.sources.base import DataSource, build_sources
from sslengine.errors import DataError
from tests.command.photos import SMALL
from tests.data.sources.videos import cut, noise, ramp, turned, write_lossless, write_video

pytest.importorskip("av", reason="reads and writes videos")


STRIDE = ["--set=DATA.TRAIN.FRAME_STRIDE=3", "--set=DATA.AUGMENT_BACKEND=pil"]


def keys(path: Path, **more: Any) -> dict[str, Any]:
    return {"DATA_SOURCES": ["video"], "DATA_PATHS": [str(path)], "CACHE_INDEX": False, **more}


def opened(path: Path, **more: Any) -> DataSource:
    (source,) = build_sources(split_options(**keys(path, **more)), "TRAIN")
    return source


# With and without an index of key frames, with frames out of order, with times of decoding alone.
@pytest.mark.parametrize(
    ("ending", "codec"),
    [("mp4", "libx264"), ("webm", "libvpx-vp9"), ("avi", "mpeg4"), ("mpg", "mpeg2video"),
     ("ts", "libx264")],
)  # fmt: skip
def test_each_frame_of_the_stride_in_any_order(ending: str, codec: str, tmp_path: Path) -> None:
    source = opened(write_video(tmp_path / f"ramp.{ending}", ramp(), codec), FRAME_STRIDE=7)
    assert len(source) == 8  # 0, 7 ... 49
    for order in (range(8), (5, 0, 7, 1, 6, 2, 4, 3, 3)):
        for index in order:
            assert abs(np.asarray(source.image(index)).mean() - 35 * index) < 5, index
    assert source.path(2) == f"{tmp_path}/ramp.{ending}, frame 14"


def test_folders_are_classes_and_a_broken_file_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "clips"
    for number, name in enumerate(("a/0.mp4", "b/1.mp4", "b/2.ts")):
        write_video(root / name, ramp(20 + number), "libx264")
    (root / "b/3.mp4").write_bytes(b"no video")
    whole = (root / "b/2.ts").read_bytes()
    (root / "b/2.ts").write_bytes(whole[: len(whole) // 2])
    with caplog.at_level(logging.WARNING, "sslengine"):
        source = opened(root, FRAME_STRIDE=10)
    assert "b/3.mp4: " in caplog.text
    assert source.labels().tolist()[:4] == [0, 0, 1, 1]
    assert set(source.labels().tolist()[4:]) == {1}  # what is left of 22 frames
    assert 4 < len(source) < 7
    assert list(source.class_names) == ["a", "b"]
    split = split_options(**keys(root, FRAME_STRIDE=1), LABEL_TYPE="sample_index")
    groups = HoldOut(SHARE=0.5, GROUP_COLUMN="video")
    rows = {each: SSLDataset(split, each, 0, hold_out=groups).rows for each in ("TRAIN", "TEST")}
    of = opened(root, FRAME_STRIDE=1).column("video", "")
    kept, held = ({of[int(row)] for row in rows[each]} for each in ("TRAIN", "TEST"))
    assert kept
    assert held
    assert not kept & held


def test_a_video_of_a_phone_is_upright(tmp_path: Path) -> None:
    left = np.zeros((32, 48, 3), np.uint8)
    left[:, :24] = 255  # white on the left: turned clockwise it is at the top
    plain = write_video(tmp_path / "plain.mp4", [left], "libx264")
    image = opened(turned(plain, tmp_path / "phone.mp4")).image(0)
    assert image.size == (32, 48)
    values = np.asarray(image).mean((1, 2))
    assert values[:20].min() > 200
    assert values[-20:].max() < 50


def read(source: DataSource, order: Iterable[int]) -> dict[int, Any]:
    """The pixels of each frame, or why it cannot be read."""
    found: dict[int, Any] = {}
    for index in order:
        try:
            found[index] = source.image(index).tobytes()
        except Exception as error:  # decoders raise many kinds
            found[index] = str(error)
    return found


def apart(source: DataSource) -> dict[int, Any]:
    """Each frame as a new worker reads it."""
    copy = pickle.dumps(source)
    return {index: read(pickle.loads(copy), [index])[index] for index in range(len(source))}


@pytest.mark.parametrize(("ending", "codec"), [("ts", "mpeg2video"), ("avi", "mpeg4")])
def test_a_damaged_file_gives_the_same_in_any_order(
    ending: str, codec: str, tmp_path: Path
) -> None:
    path = write_video(tmp_path / f"clip.{ending}", noise(), codec)
    content = bytearray(path.read_bytes())
    for start in range(len(content) // 2, len(content) // 2 + 3000, 300):
        content[start : start + 40] = bytes(range(100, 140))
    path.write_bytes(content)
    source = opened(path, FRAME_STRIDE=1)
    alone = apart(source)
    assert 5 < sum(isinstance(each, bytes) for each in alone.values()) < len(source)
    assert isinstance(alone[len(source) - 1], bytes)  # a whole key frame ends it
    for order in (range(len(source)), range(len(source) - 1, -1, -1), range(0, len(source), 3)):
        assert {**alone, **read(source, order)} == alone


def test_files_joined_byte_by_byte_are_read_until_their_times_start_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_video(tmp_path / "clip.ts", ramp(), "libx264")
    path.write_bytes(path.read_bytes() * 2)
    source = opened(path, FRAME_STRIDE=1)
    assert "its times start again" in caplog.text
    assert "its first 50 frames are used" in caplog.text
    found = read(source, range(50))
    assert len(source) == len(set(found.values())) == 50
    assert found == apart(source)


@pytest.mark.parametrize("ending", ["ts", "mkv"])
def test_frames_before_the_first_key_frame_of_a_cut_are_left_out(
    ending: str, tmp_path: Path
) -> None:
    """In .mkv they have no time."""
    options = {"x264-params": "open-gop=1:bframes=3:b-adapt=0:scenecut=0"}
    path = write_video(tmp_path / "clip.ts", ramp(), "libx264", **options)
    source = opened(cut(path, tmp_path / f"cut.{ending}"), FRAME_STRIDE=1)
    first = np.asarray(source.image(0)).mean() / 5
    assert first > 10
    for index in range(len(source)):
        assert abs(np.asarray(source.image(index)).mean() / 5 - first - index) < 1, index
    assert read(source, range(len(source))) == apart(source)


def test_the_doctor_counts_videos_that_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_video(tmp_path / "a.mp4", ramp(), "libx264")
    assert main(["doctor", str(tmp_path)]) == 0
    (tmp_path / "b.mp4").write_bytes(b"no video")
    capsys.readouterr()
    assert main(["doctor", str(tmp_path), "--json"]) == 1
    found = {each["what"]: each for each in json.loads(capsys.readouterr().out)}
    assert found["unreadable"]["value"] == 1
    assert "b.mp4: no image in it" in found["unreadable"]["advice"]


def test_what_is_not_a_video_is_refused(tmp_path: Path) -> None:
    (tmp_path / "clip.mp4").write_bytes(b"no video")
    with pytest.raises(DataError, match="no video in .* can be read"):
        opened(tmp_path / "clip.mp4")
    # A playlist names other files: only local ones, and no address, may be opened.
    (tmp_path / "list.mp4").write_text("#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:9/x.ts\n")
    with pytest.raises(DataError, match="no video in .* can be read"):
        opened(tmp_path / "list.mp4")


@pytest.mark.slow
def test_a_folder_of_videos_is_trained_on_and_embedded(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    for number in range(4):
        frames = draw.integers(0, 256, (12, 40, 40, 3), dtype=np.uint8)
        write_lossless(tmp_path / "clips" / f"{number}.mov", list(frames))
    run, out = tmp_path / "run", tmp_path / "rows.csv"
    train = ["train", str(tmp_path / "clips"), "--method=simclr", "--model=resnet10t", *SMALL]
    assert main([*train, *STRIDE, "--out", str(run)]) == 0
    assert main(["embed", str(run), str(tmp_path / "clips"), "--out", str(out), "--workers=0"]) == 0
    lines = out.read_text().splitlines()
    assert len(lines) == 1 + 4 * 4
    assert lines[2].startswith(f'"{tmp_path}/clips/0.mov, frame 3",')
