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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image, ImageOps, features

from sslengine.checkpoint.manifest import is_checkpoint, path_for, read_manifest
from sslengine.data.decode.decoding import as_rgb
from sslengine.errors import CheckpointError
from sslengine.monitor.run_facts import TRAINED
from sslengine.report.content import Fact, Map, Mistake, Thumbs, Views

PARTS = Path("report", "parts.json")  # in the folder of a run
MISTAKES, ODDEST = 12, 6
PICTURE = re.compile(r"data:image/(png|jpeg|webp|gif);base64,[A-Za-z0-9+/=]+")
# Sides of a thumbnail: small images are not enlarged much, and of large ones it can be seen what
# they show.
SMALLEST, LARGEST = 28, 40
QUALITY = 85  # 2,000 thumbnails of noise take 3 MB
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
        return _decode_parts(read_kept(folder))
    except (AttributeError, TypeError, KeyError, ValueError, IndexError):
        return Parts()


def read_kept(folder: Path) -> dict[str, Any]:
    """Read parts.json; without parts if it was made by an earlier checkpoint."""
    kept, weights = read_json(folder / PARTS), digest_of_checkpoint(folder)
    return kept if kept.get("weights") == weights else {"weights": weights}


def _decode_parts(kept: Mapping[str, Any]) -> Parts:
    views = [Views(**each) for each in kept.get("views", {}).get("made", [])]
    made = kept.get("images", {}).get("made", {})
    thumbs = Thumbs(**made["thumbs"]) if made.get("thumbs") else None
    data = [Fact(**each) for each in made.get("facts", [])]
    pictures = [uri for each in views for uri in (each.original, *each.views)]
    for uri in (*pictures, *([thumbs.sprite] if thumbs else [])):
        check_picture(uri)
    if not made.get("map"):
        return Parts(thumbs, None, views, data)
    drawn = Map(**made["map"].pop("drawn"))
    return Parts(thumbs, drawn, views, [*data, _find_oddest(drawn)], **made["map"])


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


def data_uri(picture: Image.Image) -> str:
    file, exact = BytesIO(), max(picture.size) <= EXACT
    picture.save(file, FORMAT, quality=QUALITY, lossless=exact)
    return f"data:image/{FORMAT.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


class Album:
    """Thumbnails of images of several splits, each of which is there once."""

    def __init__(self) -> None:
        self.side, self.classes = 0, list[str]()
        # By split, and number of the image: picture, name of the file, label.
        self._held: dict[tuple[str, int], tuple[Image.Image, str, int]] = {}

    def add(self, split: str, dataset: Any, number: int, label: int = -1) -> int:
        """Take a picture of an image, as the run decodes it; return its place."""
        key, source, row = (split, number), dataset.sources[0], int(dataset.rows[number])
        if key not in self._held:
            picture = as_rgb(source.image(row))
            self.side = self.side or min(LARGEST, max(SMALLEST, *picture.size))
            fitted = ImageOps.fit(picture, (self.side, self.side), Image.Resampling.BOX)
            self._held[key] = (fitted, source.relative_path(row), label)
        return list(self._held).index(key)

    def join(self) -> Thumbs | None:
        if not self._held:
            return None
        pictures, names, labels = zip(*self._held.values())
        columns = math.ceil(math.sqrt(len(names)))
        size = columns * self.side, math.ceil(len(names) / columns) * self.side
        whole = Image.new("RGB", size, "grey")
        for place, picture in enumerate(pictures):
            row, column = divmod(place, columns)
            whole.paste(picture, (self.side * column, self.side * row))
        return Thumbs(data_uri(whole), self.side, columns, names, labels, self.classes)


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
