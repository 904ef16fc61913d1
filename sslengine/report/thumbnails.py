"""Thumbnails of a run's images, kept in `RUN/report/thumbs.npz`: the images may move later.

album = Album.read(file)
album.add("set:17", image, "birds/17.png", label=3)
album.save(order)
album.thumbs(), album.places["set:17"]
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, features

from sslengine.atomic import whole_file
from sslengine.data.decode.files import as_rgb
from sslengine.report.content import Thumbs

# Sides of a thumbnail: small images are not enlarged much, and large ones can still be recognised.
SMALLEST, LARGEST = 28, 40
# What a sprite may take in a page. Quality falls until it is reached.
SPRITE_BYTES, QUALITIES = 1_500_000, (85, 70, 50, 30, 10)
FORMAT = "WEBP" if features.check("webp") else "JPEG"


def encode(picture: Image.Image, quality: int = 85) -> bytes:
    file = BytesIO()
    picture.save(file, FORMAT, quality=quality)
    return file.getvalue()


def data_uri(encoded: bytes) -> str:
    return f"data:image/{FORMAT.lower()};base64,{base64.b64encode(encoded).decode()}"


class Album:
    """Thumbnails by key, in one sprite."""

    def __init__(self, sprite: bytes = b"", about: Mapping[str, Any] | None = None) -> None:
        held = dict(about or {})
        self.side = int(held.get("side", 0))
        self.columns = int(held.get("columns", 1))
        self.classes: list[str] = list(held.get("classes", []))
        # Key -> name of the file, label.
        self.entries: dict[str, tuple[str, int]] = {
            key: (name, label) for key, name, label in held.get("entries", [])
        }
        self.sprite = sprite
        self._changed = False

    @classmethod
    def read(cls, file: Path) -> Album:
        """An empty one if there is none, or it cannot be read."""
        try:
            with np.load(file, allow_pickle=False) as held:
                return cls(held["sprite"].tobytes(), json.loads(str(held["about"])))
        except (OSError, ValueError, KeyError, BadZipFile):
            return cls()

    @property
    def places(self) -> dict[str, int]:
        return {key: place for place, key in enumerate(self.entries)}

    def thumbs(self) -> Thumbs | None:
        if not self.entries:
            return None
        names, labels = zip(*self.entries.values())
        return Thumbs(data_uri(self.sprite), self.side, self.columns, names, labels, self.classes)

    @cached_property
    def _tiles(self) -> dict[str, NDArray[np.uint8]]:
        if not self.entries:
            return {}
        with Image.open(BytesIO(self.sprite), formats=(FORMAT,)) as opened:
            whole = np.asarray(opened.convert("RGB"))
        found = {}
        for place, key in enumerate(self.entries):
            top, left = (self.side * each for each in divmod(place, self.columns))
            found[key] = whole[top : top + self.side, left : left + self.side]
        return found

    def add(self, key: str, image: Any, name: str, label: int = -1) -> None:
        """image: as the run decodes it, a picture or an array."""
        picture = as_rgb(image)
        self.side = self.side or min(LARGEST, max(SMALLEST, *picture.size))
        tile = ImageOps.fit(picture, (self.side, self.side), Image.Resampling.BOX)
        self._tiles[key] = np.asarray(tile)
        self.entries[key] = (name, label)
        self._changed = True

    def save(self, file: Path, order: Iterable[str]) -> None:
        """Keep these, in this order; the others are removed."""
        keys = [key for key in dict.fromkeys(order) if key in self.entries]
        if not self._changed and keys == list(self.entries):
            return
        tiles, self._changed = self._tiles, False
        vars(self)["_tiles"] = {key: tiles[key] for key in keys}
        self.entries = {key: self.entries[key] for key in keys}
        self.columns = max(1, int(np.ceil(np.sqrt(len(keys)))))
        self.sprite = self._encoded([tiles[key] for key in keys]) if keys else b""
        about = {"side": self.side, "columns": self.columns, "classes": self.classes,
                 "entries": [(key, *each) for key, each in self.entries.items()]}  # fmt: skip
        with whole_file(file) as opened:
            np.savez(opened, sprite=np.frombuffer(self.sprite, np.uint8), about=json.dumps(about))

    def _encoded(self, tiles: Sequence[NDArray[np.uint8]]) -> bytes:
        rows = -(-len(tiles) // self.columns)
        whole = np.full((rows * self.side, self.columns * self.side, 3), 128, np.uint8)
        for place, tile in enumerate(tiles):
            top, left = (self.side * each for each in divmod(place, self.columns))
            whole[top : top + self.side, left : left + self.side] = tile
        made = b""
        for quality in QUALITIES:
            made = encode(Image.fromarray(whole), quality)
            if 4 * len(made) <= 3 * SPRITE_BYTES:  # base64 takes four bytes for three
                break
        return made
