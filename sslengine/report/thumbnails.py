"""Thumbnails of a run's images, in one sprite that is kept: the images may move later."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, features

from sslengine.atomic import write_json
from sslengine.data.decode.files import as_rgb
from sslengine.report.content import Thumbs

# Sides of a thumbnail: small images are not enlarged much, and of large ones it can be seen what
# they show.
SMALLEST, LARGEST = 28, 40
# What a sprite may take in a page. Quality falls until it is reached.
SPRITE_BYTES, QUALITIES = 1_500_000, (85, 70, 50, 30, 10)
SMALL = 64
_KEPT = ("sprite", "side", "columns", "classes", "entries")
FORMAT = "WEBP" if features.check("webp") else "JPEG"


def data_uri(picture: Image.Image, quality: int = 85) -> str:
    file = BytesIO()
    exact = max(picture.size) <= SMALL  # of few pixels each is seen
    picture.save(file, FORMAT, quality=quality, lossless=exact)
    return f"data:image/{FORMAT.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


class Album:
    """Thumbnails by key: what identifies a set of images, a colon, the image's number in it."""

    def __init__(self, file: Path) -> None:
        """Empty if there is no file, or if it cannot be read."""
        self._file = file
        self.sprite, self.side, self.columns, self.classes = "", 0, 1, list[str]()
        self.entries: dict[str, tuple[str, int]] = {}  # name of the file, label
        self._new: dict[str, NDArray[np.uint8]] = {}
        with suppress(OSError, ValueError):
            held = dict(json.loads(file.read_bytes()))
            vars(self).update({name: held[name] for name in _KEPT if name in held})

    def thumbs(self) -> Thumbs | None:
        if not self.entries:
            return None
        names, labels = zip(*self.entries.values())
        return Thumbs(self.sprite, self.side, self.columns, names, labels, self.classes)

    def add(self, key: str, image: Any, name: str, label: int = -1) -> None:
        """image: as the run decodes it, a picture or an array."""
        picture = as_rgb(image)
        self.side = self.side or min(LARGEST, max(SMALLEST, *picture.size))
        fitted = ImageOps.fit(picture, (self.side, self.side), Image.Resampling.BOX)
        self._new[key], self.entries[key] = np.asarray(fitted), (name, label)

    def save(self, order: Iterable[str]) -> None:
        """Keep these, in this order; the others are removed."""
        kept = {key: self.entries[key] for key in order if key in self.entries}
        if not self._new and list(kept) == list(self.entries):
            return
        tiles, self.entries = {**self._tiles(), **self._new}, kept
        self.columns = max(1, math.ceil(math.sqrt(len(kept))))
        rows = max(1, math.ceil(len(kept) / self.columns))
        whole = np.full((rows * self.side, self.columns * self.side, 3), 128, np.uint8)
        for place, key in enumerate(self.entries):
            whole[self._at(place)] = tiles[key]
        for quality in QUALITIES if self.entries else ():
            self.sprite = data_uri(Image.fromarray(whole), quality)
            if len(self.sprite) <= SPRITE_BYTES:
                break
        self._new = {}
        write_json(self._file, {name: getattr(self, name) for name in _KEPT})

    def _tiles(self) -> dict[str, NDArray[np.uint8]]:
        if not self.sprite:
            return {}
        encoded = BytesIO(base64.b64decode(self.sprite.partition(",")[2]))
        with Image.open(encoded, formats=(FORMAT,)) as opened:
            whole = np.asarray(opened.convert("RGB"))
        return {key: whole[self._at(place)] for place, key in enumerate(self.entries)}

    def _at(self, place: int) -> tuple[slice, slice]:
        row, column = divmod(place, self.columns)
        top, left = self.side * row, self.side * column
        return slice(top, top + self.side), slice(left, left + self.side)
