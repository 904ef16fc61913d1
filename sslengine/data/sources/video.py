"""`video`: frames of videos, every FRAME_STRIDE-th of each file.

DATA_PATHS is one video, or a folder of them, whose folders are the classes as for disk_folder. One
pass over the packets of each file, without decoding, finds the times of its frames. To read a frame
the decoder starts at its key frame, so it does not matter what was read before; frames that follow
until the next key frame are decoded once if they are read in order. Behind a damaged frame they are
unreadable.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

try:
    import av
except ImportError:
    av = None

from sslengine.data.decode.files import expect_there
from sslengine.data.manifest.classes import NO_CLASS
from sslengine.data.manifest.index import (
    FoundImages,
    ProgressLog,
    SharedArray,
    Stamp,
    indexed,
    stamp,
)
from sslengine.data.manifest.paths import data_path
from sslengine.data.options import SplitOptions, VideoOptions, own
from sslengine.data.sources.base import DataSource
from sslengine.data.sources.disk import VIDEO_SUFFIXES, index_folder
from sslengine.errors import DataError, readable
from sslengine.registry import register_data_source

log = logging.getLogger("sslengine")

NO_TIME = int(np.iinfo(np.int64).min)
START_AGAIN = (
    "its times start again, as in files that were joined byte by byte; "
    "`ffmpeg -i FILE -c copy NEW.mkv` writes one of which all frames can be read"
)


class _Position(NamedTuple):
    """The decoder of a file, behind one of its frames. frames: None for a damaged packet."""

    video: int
    key: int  # the time of the key frame where it started; NO_TIME: at the beginning of the file
    container: Any
    frames: Iterator[Any]
    time: int = NO_TIME
    is_damaged: bool = False


@register_data_source("video")
class VideoSource(DataSource):
    """Frames as RGB images, turned as the file says."""

    needs_path = True
    reads = ()

    def __init__(self, options: SplitOptions, split: str, position: int = 0) -> None:
        super().__init__(options, split, position)
        root, self.where = data_path(options, split, position)
        if av is None:
            raise DataError(f"{self.where}: to read videos: pip install 'sslengine[video]' (PyAV).")
        expect_there(root, self.where)
        chosen = own(options, VideoOptions)
        self._stride = chosen.FRAME_STRIDE
        if root.is_file():
            self._files: Sequence[bytes] = [os.fsencode(root.name)]
            self._labels = SharedArray(np.full(1, NO_CLASS))
        else:
            found = index_folder(root, VIDEO_SUFFIXES, chosen.CACHE_INDEX)
            self._files, self._labels = found.strings("paths"), found["labels"]
            self.class_names = [os.fsdecode(name) for name in found.strings("classes")]
        self.root = root.parent if root.is_file() else root
        self.num_classes = len(self.class_names)
        frames = indexed(
            f"keys, {self._stride}: {self.root.resolve()}, {len(self._files)}, {self._files[:1]}",
            f"looking for frames in {self.root}",
            self._find,
            chosen.CACHE_INDEX,
        )
        self._video, self._time, self._first = frames["video"], frames["time"], frames["first"]
        self._key = frames["key"]
        if not len(self):
            raise DataError(
                f"{self.where}: no video in {self.root} can be read. Looked for files that end in "
                f"{', '.join(VIDEO_SUFFIXES)}."
            )
        self._at: _Position | None = None

    def __len__(self) -> int:
        return len(self._time.array)

    def image(self, index: int) -> Image.Image:
        arrays = self._video, self._key, self._time
        video, key, time = (int(each.array[index]) for each in arrays)
        at, self._at = self._at, None
        if at is None or at.video != video or at.key not in (key, NO_TIME) or at.time >= time:
            if at is not None:
                at.container.close()
            at = self._seek(video, key)
        is_damaged = at.is_damaged
        for frame in at.frames:
            whole_key = frame is not None and frame.key_frame and not frame.is_corrupt
            is_damaged = not whole_key and (is_damaged or frame is None or frame.is_corrupt)
            if frame is None or _time(frame) < time:
                continue
            if _time(frame) > time:
                break
            self._at = at._replace(time=time, is_damaged=is_damaged)
            if is_damaged:
                raise ValueError("this frame, or one that it may be made from, is damaged")
            image: Image.Image = frame.to_image()
            # Phones store how a video is to be turned.
            return image.rotate(frame.rotation, expand=True) if frame.rotation else image
        at.container.close()
        raise EOFError("the decoder gives no such frame")

    def _seek(self, video: int, key: int) -> _Position:
        """Put the decoder at the key frame of this time. Formats without an index of key frames may
        lead it elsewhere: then at the beginning."""
        for start in (NO_TIME,) if key == NO_TIME else (key, NO_TIME):
            container = _open(self._file(video))
            stream = container.streams.video[0]
            stream.thread_type = "SLICE"  # workers are processes; no frame is decoded in advance
            if start != NO_TIME:
                container.seek(start, stream=stream, backward=True)
            frames = _decode(container, stream)
            first = next(frames, None)
            if start == NO_TIME or (first and first.key_frame and NO_TIME < _time(first) <= key):
                break
            container.close()
        return _Position(video, start, container, chain([first], frames))

    def left_out(self) -> list[str]:
        found = np.bincount(self._video.array, minlength=len(self._files))
        return [self._file(int(video)) for video in np.flatnonzero(found == 0)]

    def labels(self) -> NDArray[np.generic]:
        advice = "lie in no class folder. Move each video into a folder named after its class"
        return self.expect_labels(self._labels.array[self._video.array], advice)

    def column(self, name: str, where: str) -> list[str]:
        """Return `video`, for DATA.HOLD_OUT.GROUP_COLUMN: neighbouring frames are nearly equal."""
        if name != "video":
            raise DataError(f"{where}: frames have one column, 'video'; got {name!r}.")
        return [self._file(int(video)) for video in self._video.array]

    def path(self, index: int) -> str:
        video = int(self._video.array[index])
        number = (index - int(self._first.array[video])) * self._stride
        return f"{readable(self._file(video))}, frame {number}"

    def files_of(self, rows: NDArray[np.int64]) -> list[str]:
        return [self._file(video) for video in np.unique(self._video.array[rows]).tolist()]

    def _file(self, video: int) -> str:
        return os.path.join(self.root, os.fsdecode(self._files[video]))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_at": None}

    def _find(self) -> FoundImages:
        progress = ProgressLog(f"looking for frames in {self.root}", total=len(self._files))
        times, keys, stamps = [], [], []
        for number in range(len(self._files)):
            file = self._file(number)
            # Of a link to nothing a stamp that no file has: it may be there at the next start.
            there = os.path.exists(file)
            stamps.append(stamp(file) if there else Stamp(os.fsencode(file), 0, -1))
            of_frames, of_keys = _find_times(file)
            times.append(of_frames[:: self._stride])
            keys.append(of_keys[:: self._stride])
            progress.tell(number + 1, "videos")
        counts = [len(each) for each in times]
        arrays: dict[str, NDArray[Any]] = {
            "time": np.concatenate([np.empty(0, np.int64), *times]),
            "key": np.concatenate([np.empty(0, np.int64), *keys]),
            "video": np.repeat(np.arange(len(counts), dtype=np.int32), counts),
            "first": np.cumsum([0, *counts])[:-1],
        }
        return FoundImages(arrays, stamps, sum(counts))


def _open(file: str) -> Any:
    """Open local files alone: some formats name others, of which FFmpeg would open any address."""
    return av.open(f"file:{file}", options={"protocol_whitelist": "file"})


def _find_times(file: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find the times of all frames, in the file's units, and of each that of its key frame.

    There are none where it cannot be read, which is reported. Where they start again, as in files
    that were joined byte by byte, a seek may miss: the key frame is the beginning, NO_TIME.
    """
    packets: list[tuple[int, bool, bool]] = []
    trouble: object = None
    try:
        with _open(file) as container:
            if not container.streams.video:
                raise ValueError("it has no pictures")
            found = container.demux(container.streams.video[0])
            packets.extend((_time(of), of.is_keyframe, of.is_discard) for of in found if of.size)
    except (OSError, ValueError) as error:  # av's errors are of these kinds
        trouble = error
    timed = np.array(packets, np.int64).reshape(-1, 3)
    timed = timed[timed[:, 0] != NO_TIME]
    first = timed[timed[:, 1] > 0, 0][:1]
    times, is_key, _ = timed[timed[:, 2] == 0].T  # others are decoded without being shown
    back = np.flatnonzero((is_key > 0) & (times < np.maximum.accumulate(times)))[:1]
    keys = np.unique(times[is_key > 0])
    times = np.unique(times[: back[0]] if back.size else times)
    # Frames before the first key frame cannot be decoded: a cut has left them.
    times = times[times >= first] if first.size else times
    if back.size or trouble:
        used = f"its first {len(times)} frames are used" if len(times) else "it is left out"
        log.warning("%s: %s: %s", readable(file), trouble or START_AGAIN, used)
    if back.size or not keys.size:
        return times, np.full_like(times, NO_TIME)
    return times, keys[np.maximum(np.searchsorted(keys, times, "right") - 1, 0)]


def _decode(container: Any, stream: Any) -> Iterator[Any]:
    """Yield the frames; None for a packet that cannot be decoded."""
    for packet in container.demux(stream):
        try:
            yield from packet.decode()
        except av.error.InvalidDataError:
            yield None


def _time(of: Any) -> int:
    """Return when it is shown. Some formats have only the time of decoding; packets that a cut has
    left may have none."""
    time = of.dts if of.pts is None else of.pts
    return NO_TIME if time is None else int(time)
