"""`video`: frames of videos, every FRAME_STRIDE-th of each file.

DATA_PATHS is one video, or a folder of them, whose folders are the classes as for disk_folder. One
pass over the packets of each file, without decoding, finds the times of its frames. To read a frame
the decoder starts at the key frame before it; frames that are read in their order are decoded once.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

try:
    import av
except ImportError:
    av = None

from sslengine.data.loading.progress import Progress
from sslengine.data.manifest.index_cache import Found, indexed, stamp
from sslengine.data.manifest.shared import SharedArray
from sslengine.data.options import SplitOptions, VideoOptions, own
from sslengine.data.sources.base import DataSource
from sslengine.data.sources.class_numbers import NO_CLASS, all_known
from sslengine.data.sources.disk import VIDEO_SUFFIXES
from sslengine.data.sources.folder_scan import find_images
from sslengine.data.sources.paths import data_path, how_far
from sslengine.errors import DataError, MissingDataError, readable
from sslengine.registry import register_data_source

log = logging.getLogger("sslengine")


class _Position(NamedTuple):
    """The decoder of a file, behind one of its frames."""

    video: int
    time: int
    container: Any
    frames: Iterator[Any]


@register_data_source("video")
class VideoSource(DataSource):
    """Frames as RGB images, turned as the file says."""

    needs_path = True
    reads = ()

    def __init__(self, options: SplitOptions, split: str, position: int = 0) -> None:
        super().__init__(options, split, position)
        self.root, self.where = data_path(options, split, position)
        if av is None:
            raise DataError(f"{self.where}: to read videos: pip install 'sslengine[video]' (PyAV).")
        if not self.root.exists():
            why = how_far(self.root)
            raise MissingDataError(f"{self.where}: {self.root} is not there: {why}")
        chosen = own(options, VideoOptions)
        self._stride, self._split = chosen.FRAME_STRIDE, split
        cached = chosen.CACHE_INDEX
        if self.root.is_file():
            self._files: Sequence[bytes] = [os.fsencode(self.root.name)]
            self.root, labels = self.root.parent, SharedArray(np.full(1, NO_CLASS))
        else:
            found = indexed(
                f"folder, {' '.join(VIDEO_SUFFIXES)}: {self.root.resolve()}",
                f"looking through {self.root}",
                lambda: find_images(Path(self.root), VIDEO_SUFFIXES),
                cached,
            )
            self._files, labels = found.paths(), found["labels"]
            self.class_names = [os.fsdecode(name) for name in found.strings("classes")]
        self._labels, self.num_classes = labels, len(self.class_names)
        frames = indexed(
            f"frames, {self._stride}: {self.root.resolve()}, {len(self._files)}, {self._files[:1]}",
            f"looking for frames in {self.root}",
            self._find,
            cached,
        )
        self._video, self._time, self._first = frames["video"], frames["time"], frames["first"]
        if not len(self):
            raise DataError(
                f"{self.where}: no video in {self.root} can be read. Looked for files that end in "
                f"{', '.join(VIDEO_SUFFIXES)}."
            )
        self._at: _Position | None = None

    def __len__(self) -> int:
        return len(self._time.array)

    def image(self, index: int) -> Image.Image:
        video, time = int(self._video.array[index]), int(self._time.array[index])
        at, self._at = self._at, None
        if at is None or at.video != video or not _is_next(self._time.array, index, at.time):
            if at is not None:
                at.container.close()
            at = self._sought(video, time)
        for frame in at.frames:
            if _time(frame) >= time:
                self._at = at._replace(time=time)
                return _upright(frame)
        at.container.close()
        raise EOFError("the video ends before this frame")

    def _sought(self, video: int, time: int) -> _Position:
        """The decoder at a key frame before this time. Formats without an index of key frames may
        lead it elsewhere: then from the beginning."""
        for seek in (True, False):
            container = _opened(self._file(video))
            stream = container.streams.video[0]
            stream.thread_type = "SLICE"  # workers are processes; no frame is decoded in advance
            if seek:
                container.seek(time, stream=stream, backward=True)
            frames = container.decode(stream)
            first = next(frames, None)
            if not seek or (first is not None and first.key_frame and _time(first) <= time):
                break
            container.close()
        return _Position(video, time, container, chain([first] if first else [], frames))

    def labels(self) -> NDArray[np.generic]:
        return all_known(
            self._labels.array[self._video.array],
            lambda outside: (
                f"{self.where}: labels are asked for, and {outside.size} frames lie in no class "
                f"folder, the first is {self.path(int(outside[0]))}. Move each video into a folder "
                f"named after its class, or train without LABEL_SOURCES."
            ),
        )

    def label(self, index: int) -> int:
        return int(self._labels.array[self._video.array[index]])

    def column(self, name: str, where: str) -> list[str]:
        """`video`, for DATA.HOLD_OUT.GROUP_COLUMN: neighbouring frames are nearly the same."""
        if name != "video":
            raise DataError(f"{where}: frames have one column, 'video'; got {name!r}.")
        return [self._file(int(video)) for video in self._video.array]

    def path(self, index: int) -> str:
        video = int(self._video.array[index])
        number = (index - int(self._first.array[video])) * self._stride
        return f"{readable(self._file(video))}, frame {number}"

    def _file(self, video: int) -> str:
        return os.path.join(self.root, os.fsdecode(self._files[video]))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_at": None}

    def _find(self) -> Found:
        progress = Progress(f"looking for frames in {self.root}", total=len(self._files))
        times: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
        marks = []
        for number in range(len(self._files)):
            file = self._file(number)
            marks.append(stamp(file))
            times.append(_frame_times(file)[:: self._stride])
            progress.tell(number + 1, "videos")
        counts = [len(each) for each in times[1:]]
        arrays: dict[str, NDArray[Any]] = {
            "time": np.concatenate(times),
            "video": np.repeat(np.arange(len(counts), dtype=np.int32), counts),
            "first": np.cumsum([0, *counts])[:-1],
        }
        return Found(arrays, marks, sum(counts))


def _opened(file: str) -> Any:
    """Local files alone: some formats name others, of which FFmpeg would open any address."""
    return av.open(f"file:{file}", options={"protocol_whitelist": "file"})


def _frame_times(file: str) -> NDArray[np.int64]:
    """Of all frames, in the units of the file; none where it cannot be read, which is reported."""
    times: list[int] = []
    try:
        with _opened(file) as container:
            if not container.streams.video:
                raise ValueError("it has no pictures")
            packets = container.demux(container.streams.video[0])
            times.extend(_time(each) for each in packets if each.size and not each.is_discard)
    except (OSError, ValueError) as error:  # av's errors are of these kinds
        log.warning("%s: %s: its first %d frames are used", readable(file), error, len(times))
    return np.array(sorted(times), np.int64)


def _time(of: Any) -> int:
    """Some formats have only the time of decoding."""
    return int(of.dts if of.pts is None else of.pts)


def _is_next(times: NDArray[np.int64], index: int, last: int) -> bool:
    return index > 0 and int(times[index - 1]) == last


def _upright(frame: Any) -> Image.Image:
    """Phones store how a video is to be turned."""
    image: Image.Image = frame.to_image()
    return image.rotate(frame.rotation, expand=True) if frame.rotation else image
