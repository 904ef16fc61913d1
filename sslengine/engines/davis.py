"""Videos on the disk, laid out as DAVIS-2017 is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sslengine.errors import DataError
from sslengine.evaluation.retrieval.on_disk import images_of

WHERE = "config.EVALUATE.VIDEOS"
LISTED = "ImageSets/2017/val.txt"


@dataclass(frozen=True)
class Video:
    name: str
    frames: Sequence[Path]
    masks: Path  # their folder

    def mask(self, number: int) -> Path:
        """Of a frame."""
        path = (self.masks / self.frames[number].name).with_suffix(".png")
        if not path.is_file():
            raise DataError(f"there is no mask {path} of the frame {self.frames[number]}.")
        return path


def read_videos(folder: Path) -> list[Video]:
    """Those of the list, in its order."""
    listed = folder / LISTED
    if not listed.is_file():
        raise DataError(
            f"{WHERE}.PATH: there is no list {str(listed)!r}; expected a folder laid out as "
            f"DAVIS-2017: JPEGImages/480p, Annotations/480p, {LISTED}."
        )
    names = [line.strip() for line in listed.read_text().splitlines() if line.strip()]
    found = [_video(folder, name) for name in names]
    if not found:
        raise DataError(f"{WHERE}.PATH: {listed} names no video.")
    return found


def _video(folder: Path, name: str) -> Video:
    frames = images_of(folder / "JPEGImages/480p" / name)
    if len(frames) < 3:
        raise DataError(
            f"{name}: expected 3 frames or more, of which the first and the last do not count; "
            f"got {len(frames)}."
        )
    return Video(name, frames, folder / "Annotations/480p" / name)
