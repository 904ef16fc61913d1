"""Images as files: `<run>/images/<name>/<iteration>.png`; of test phases, `images/test/<name>`."""

from __future__ import annotations

import logging
from pathlib import Path

import PIL.Image

from sslengine.atomic import make_folder
from sslengine.monitor.writers import Record, Writer

log = logging.getLogger("sslengine")


class ImageWriter(Writer):
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._failed = False
        self._unsynced: list[Path] = []

    def write(self, record: Record) -> None:
        within = self.folder if record.split == "train" else self.folder / record.split
        for name, image in record.images.items():
            path = within / name / f"{record.iteration}.png"
            try:
                make_folder(path.parent)
                PIL.Image.fromarray(image).save(path)
                self._unsynced.append(path)
                self._failed = False
            except OSError as error:  # a full disk must not end a run
                if not self._failed:
                    log.error("%s could not be written: %s. Training continues.", path, error)
                self._failed = True

    def unsynced(self) -> list[Path]:
        written, self._unsynced = self._unsynced, []
        return written
