"""What a run's folder keeps for its page of images and features, read without torch.

RUN/report/parts.json has a map of up to 2,000 images with their thumbnails, views of training
images, and the check of the data. make_parts.py writes it. What belongs to an earlier checkpoint is
not read.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image, ImageOps, features

from sslengine.checkpoint.manifest import is_checkpoint, path_for, read_manifest
from sslengine.data.decode.files import as_rgb
from sslengine.errors import CheckpointError
from sslengine.monitor.run_facts import TRAINED
from sslengine.report.content import Fact, Map, Mistake, Thumbs, Views

PARTS = Path("report", "parts.json")  # in the folder of a run
MISTAKES, ODDEST = 12, 6
PICTURE = re.compile(r"data:image/(png|jpeg|webp|gif);base64,[A-Za-z0-9+/=]+")
# Sides of a thumbnail: small images are not enlarged much, and of large ones it can be seen what
# they show.
SMALLEST, LARGEST = 28, 40
SPRITE_QUALITY = 60  # 2,000 thumbnails of noise are below 2 MB
EXACT = 64  # pixels of the side of a picture in which each pixel is seen
FORMAT = "WEBP" if features.check("webp") else "JPEG"


@dataclass(frozen=True)
class Parts:
    thumbs: Thumbs | None = None
    map: Map | None = None
    views: Sequence[Views] = ()
    data: Sequence[Fact] = ()
    # Of the judged images that the map shows: the fingerprint of all, and their numbers.
    fingerprint: str = ""
    numbers: Sequence[int] = ()
    # How similar the nearest of each image are to it, trained.
    similar: Sequence[Sequence[float]] = ()

    def mistakes(
        self, numbers: NDArray[Any], wanted: NDArray[Any], answers: NDArray[Any]
    ) -> list[Mistake]:
        """Find the judged images whose neighbours agree most on the class of a wrong answer.

        numbers, wanted, answers: of the images of `fingerprint`. Those of the map are found.
        """
        if self.map is None or self.thumbs is None:
            return []
        thumbs, nearest, found = self.thumbs, self.map.nearest[TRAINED], []
        rows = {number: row for row, number in enumerate(self.numbers)}
        for number, right, answer in zip(numbers.tolist(), wanted.tolist(), answers.tolist()):
            if right != answer and number in rows:
                row = rows[number]
                weights = zip(nearest[row], self.similar[row])
                agree = sum(each for near, each in weights if thumbs.labels[near] == answer)
                found.append(
                    (-100 * agree / max(sum(self.similar[row]), 1e-12), row, right, answer)
                )
        classes = thumbs.classes
        return [
            Mistake(row, thumbs.names[row], classes[right], classes[answer], -votes)
            for votes, row, right, answer in sorted(found)[:MISTAKES]
        ]


# ---- reading


def read_parts(folder: Path) -> Parts:
    """Read what is there: nothing is computed, and no image is opened.

    A file that is not as make_parts writes it is not shown.
    """
    try:
        return _as_parts(read_kept(folder))
    except (AttributeError, TypeError, KeyError, ValueError, IndexError):
        return Parts()


def read_kept(folder: Path) -> dict[str, Any]:
    """Read parts.json; without parts if it was made by an earlier checkpoint."""
    kept, weights = read_json(folder / PARTS), digest_of_checkpoint(folder)
    return kept if kept.get("weights") == weights else {"weights": weights}


def _as_parts(kept: Mapping[str, Any]) -> Parts:
    made = {name: kept.get(name, {}).get("made", []) for name in ("views", "data")}
    thumbs = Thumbs(**kept["thumbs"]) if kept.get("thumbs") else None
    rows = {key: row for row, key in enumerate(kept.get("keys", []))}
    data = [
        Fact(**{**fact, "thumbs": [rows[key] for key in fact["thumbs"] if key in rows]})
        for fact in made["data"]
    ]
    views = [Views(**each) for each in made["views"]]
    pictures = [uri for each in views for uri in (each.original, *each.views)]
    for uri in (*pictures, *([thumbs.sprite] if thumbs else [])):
        check_picture(uri)
    if "map" not in kept or thumbs is None:
        return Parts(thumbs, None, views, data)
    held = kept["map"]["made"]
    drawn, about = Map(**held["map"]), (held["fingerprint"], held["numbers"], held["similar"])
    return Parts(thumbs, drawn, views, [*data, _find_oddest(drawn)], *about)


def check_picture(uri: str) -> Markup:
    """Let through a picture that lies in the page, no address."""
    if not PICTURE.fullmatch(uri):
        raise ValueError(f"not a picture in base64: {uri[:40]!r}")
    return Markup(uri)


def digest_of_checkpoint(folder: Path) -> str:
    """Identify the newest checkpoint; empty without one."""
    found = [(0, "")]
    for path in filter(is_checkpoint, (folder / "checkpoints").glob("*")):
        with suppress(CheckpointError, OSError):
            content = path_for(path).read_bytes()
            found.append((read_manifest(path).number, hashlib.sha256(content).hexdigest()))
    return max(found)[1]


def read_json(file: Path) -> dict[str, Any]:
    """Return {} if there is none, or it cannot be read: it is made again."""
    with suppress(OSError, ValueError):
        found = json.loads(file.read_bytes())
        return found if isinstance(found, dict) else {}
    return {}


def _find_oddest(drawn: Map) -> Fact:
    order = np.argsort(-np.array(drawn.distances), kind="stable")[:ODDEST].tolist()
    far, middle = drawn.distances[order[0]], float(np.median(drawn.distances))
    value = f"mean distance to the ten nearest up to {far:.2f}, median {middle:.2f}"
    return Fact("oddest images", value, "look at them: they may not belong to the set", order)


# ---- pictures


def data_uri(picture: Image.Image, quality: int = 85) -> str:
    file, exact = BytesIO(), max(picture.size) <= EXACT
    picture.save(file, FORMAT, quality=quality, lossless=exact)
    return f"data:image/{FORMAT.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


class Album:
    """Thumbnails by key: the name of a set of images, a colon, the image's number in it."""

    def __init__(self, kept: Mapping[str, Any]) -> None:
        """kept: of parts.json, where `arrange` has put them."""
        self.side, self.classes, self._new = 0, list[str](), False
        self.tiles: dict[str, tuple[Image.Image, str, int]] = {}  # picture, name of file, label
        with suppress(KeyError, TypeError, ValueError, OSError):  # they are made again
            held = Thumbs(**kept["thumbs"])
            encoded = BytesIO(base64.b64decode(held.sprite.partition(",")[2]))
            with Image.open(encoded, formats=(FORMAT,)) as opened:
                whole = opened.convert("RGB")
            self.side, self.classes = held.side, [*held.classes]
            for place, (key, *named) in enumerate(zip(kept["keys"], held.names, held.labels)):
                left, top = self._at(place, held.columns)
                tile = whole.crop((left, top, left + held.side, top + held.side))
                self.tiles[key] = (tile, *named)

    def add(self, images: str, dataset: Any, number: int, label: int | None = None) -> str:
        """Take a picture of an image, as the run decodes it, if there is none; return its key."""
        key, source, row = f"{images}:{number}", dataset.sources[0], int(dataset.rows[number])
        if key not in self.tiles:
            picture = as_rgb(source.image(row))
            self.side = self.side or min(LARGEST, max(SMALLEST, *picture.size))
            fitted = ImageOps.fit(picture, (self.side, self.side), Image.Resampling.BOX)
            self.tiles[key], self._new = (fitted, source.relative_path(row), -1), True
        if label is not None:
            self.tiles[key], self._new = (*self.tiles[key][:2], label), True
        return key

    def arrange(self, order: Iterable[str], kept: dict[str, Any]) -> None:
        """Put these into what is kept, in this order; the others are removed."""
        shown = {key: self.tiles[key] for key in order if key in self.tiles}
        if not self._new and [*shown] == kept.get("keys", []):
            return
        kept.update({"keys": [*shown], "thumbs": None})
        if shown:
            columns = math.ceil(math.sqrt(len(shown)))
            size = columns * self.side, math.ceil(len(shown) / columns) * self.side
            whole = Image.new("RGB", size, "grey")
            for place, (tile, _, _) in enumerate(shown.values()):
                whole.paste(tile, self._at(place, columns))
            _, names, labels = zip(*shown.values())
            sprite = data_uri(whole, SPRITE_QUALITY)
            kept["thumbs"] = asdict(Thumbs(sprite, self.side, columns, names, labels, self.classes))

    def _at(self, place: int, columns: int) -> tuple[int, int]:
        row, column = divmod(place, columns)
        return self.side * column, self.side * row


# ---- which images


def choose_images(labels: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Choose ascending rows, evenly apart, of each class as many where there are labels."""
    members = [np.flatnonzero(labels == each) for each in np.unique(labels) if each >= 0]
    groups = sorted(members or [np.arange(len(labels))], key=len)
    if len(labels) <= most:
        return np.arange(len(labels))
    chosen: list[NDArray[np.int64]] = []
    for place, group in enumerate(groups):  # what a small class leaves is the others'
        chosen.append(spread(group, most // (len(groups) - place)))
        most -= len(chosen[-1])
    return np.sort(np.concatenate(chosen))


def spread(rows: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return so many of the rows, or all, evenly apart."""
    count = min(count, len(rows))
    return rows[np.arange(count) * len(rows) // max(1, count)]
