"""What a run's folder keeps for its page of images and features, read without torch.

    RUN/report/parts.json    views of training images, the check of the data, small pictures
    RUN/report/map.npz       places, neighbours and clusters of up to 2,000 images

make_parts.py writes them. What belongs to an earlier checkpoint is not read.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
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
from sslengine.evaluation.kept import Kept
from sslengine.monitor.run_facts import TRAINED, UNTRAINED
from sslengine.report.content import Fact, Map, Mistake, Thumbs, Views

FOLDER, MAP, PARTS = "report", "map", "parts.json"
MISTAKES, ODDEST = 12, 6
PICTURE = re.compile(r"data:image/(png|jpeg|webp|gif);base64,[A-Za-z0-9+/=]+")
# Sides of a thumbnail: small images are not enlarged much, and of large ones it can be seen what
# they show.
SMALLEST, LARGEST = 28, 40
# What a sprite may take in a page. Quality falls until it is reached.
SPRITE_BYTES, QUALITIES = 1_500_000, (85, 70, 50, 30, 10)
EXACT = 64  # pixels of the side of a picture in which each pixel is seen
FORMAT = "WEBP" if features.check("webp") else "JPEG"


@dataclass(frozen=True)
class Parts:
    thumbs: Thumbs | None = None
    map: Map | None = None
    views: Sequence[Views] = ()
    data: Sequence[Fact] = ()
    # The fingerprint of the judged images that the map shows.
    fingerprint: str = ""
    # Of the map.
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict, repr=False, compare=False)

    def mistakes(
        self, numbers: NDArray[Any], wanted: NDArray[Any], answers: NDArray[Any]
    ) -> list[Mistake]:
        """Find the judged images whose neighbours agree most on the class of a wrong answer.

        numbers, wanted, answers: of the images of `fingerprint`. Those of the map are found.
        """
        if self.thumbs is None:
            return []
        held, classes, found = self.arrays, self.thumbs.classes, []
        place = {int(number): row for row, number in enumerate(held["numbers"])}
        for number, right, answer in zip(numbers.tolist(), wanted.tolist(), answers.tolist()):
            row = place.get(number)
            if row is not None and right != answer:
                similar = held["similar_trained"][row]
                agree = held["labels"][held["nearest_trained"][row]] == answer
                votes = 100 * float(similar[agree].sum()) / max(float(similar.sum()), 1e-12)
                found.append((-votes, row, right, answer))
        return [
            Mistake(row, self.thumbs.names[row], classes[right], classes[answer], -votes)
            for votes, row, right, answer in sorted(found)[:MISTAKES]
        ]


# ---- reading


def read_parts(folder: Path) -> Parts:
    """Read what is there: nothing is computed, and no image is opened.

    Files that are not as make_parts writes them are not shown.
    """
    try:
        return _read(folder / FOLDER, digest_of_checkpoint(folder))
    except (AttributeError, TypeError, KeyError, ValueError, IndexError):
        return Parts()


def _read(place: Path, weights: str) -> Parts:
    kept, held = read_json(place / PARTS), Kept(place, weights).get(MAP)
    thumbs = Thumbs(**kept["thumbs"]) if kept.get("thumbs") else None
    rows = {key: row for row, key in enumerate(kept.get("keys", []))}
    data = [
        Fact(**{**fact, "thumbs": [rows[key] for key in fact["thumbs"] if key in rows]})
        for fact in kept.get("data", {}).get("made", [])
    ]
    network = kept.get("network", {})
    seen = [] if network.get("key") != weights else network["made"]
    views = [Views(**each) for each in (*kept.get("views", {}).get("made", []), *seen)]
    pictures = [uri for each in views for uri in (each.original, *each.views)]
    for uri in (*pictures, *([thumbs.sprite] if thumbs else [])):
        check_picture(uri)
    if held is None or thumbs is None:
        return Parts(thumbs, None, views, data)
    drawn = as_map(held, len(thumbs.classes))
    return Parts(thumbs, drawn, views, [*data, _oddest(drawn)], str(held["fingerprint"]), held)


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


def as_map(held: Mapping[str, NDArray[Any]], classes: int) -> Map:
    labels, networks = held["labels"], (UNTRAINED, TRAINED)
    shares, by_class = dict[str, float](), dict[str, Sequence[float]]()
    known = labels >= 0
    for name in networks if known.any() else ():
        same = (labels[held[f"nearest_{name}"]] == labels[:, None]).mean(axis=1) * 100
        shares[name] = float(same[known].mean())
        of_class = [same[labels == number] for number in range(classes)]
        by_class[name] = [float(each.mean()) if len(each) else 0.0 for each in of_class]
    return Map(
        {name: [(x, y) for x, y in held[f"places_{name}"].tolist()] for name in networks},
        {name: held[f"nearest_{name}"].tolist() for name in networks},
        shares,
        by_class,
        held["clusters"].tolist(),
        (1 - held["similar_trained"]).mean(axis=1).tolist(),
        held["queries"].tolist(),
    )


def _oddest(drawn: Map) -> Fact:
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
    """Thumbnails by key: what identifies a set of images, a colon, the image's number in it."""

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

    def add(self, key: str, source: Any, row: int, label: int | None = None) -> None:
        """Take a picture of an image of a source, as the run decodes it, if there is none."""
        if key not in self.tiles:
            picture = as_rgb(source.image(row))
            self.side = self.side or min(LARGEST, max(SMALLEST, *picture.size))
            fitted = ImageOps.fit(picture, (self.side, self.side), Image.Resampling.BOX)
            self.tiles[key], self._new = (fitted, source.relative_path(row), -1), True
        if label is not None:
            self.tiles[key], self._new = (*self.tiles[key][:2], label), True

    def arrange(self, order: Iterable[str], kept: dict[str, Any]) -> None:
        """Put these into what is kept, in this order; the others are removed."""
        shown = {key: self.tiles[key] for key in order if key in self.tiles}
        if not self._new and [*shown] == kept.get("keys", []):
            return
        columns, thumbs = max(1, math.ceil(math.sqrt(len(shown)))), None
        if shown:
            size = columns * self.side, math.ceil(len(shown) / columns) * self.side
            whole = Image.new("RGB", size, "grey")
            for place, (tile, _, _) in enumerate(shown.values()):
                whole.paste(tile, self._at(place, columns))
            for quality in QUALITIES:
                sprite = data_uri(whole, quality)
                if len(sprite) <= SPRITE_BYTES:
                    break
            _, names, labels = zip(*shown.values())
            thumbs = asdict(Thumbs(sprite, self.side, columns, names, labels, self.classes))
        kept.update({"keys": [*shown], "thumbs": thumbs})

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
