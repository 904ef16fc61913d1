"""What a run's folder keeps for its page of images and features, read without torch.

    RUN/report/map.npz       places, neighbours and clusters of up to 2,000 images
    RUN/report/thumbs.json   their thumbnails, and others that are shown
    RUN/report/views.json    what the network gets of some images, and what it makes of them
    RUN/report/data.json     the check of the data

make_parts.py writes them. What belongs to an earlier checkpoint is not read.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from sslengine.checkpoint.manifest import is_checkpoint, path_for, read_manifest
from sslengine.errors import CheckpointError
from sslengine.evaluation.kept import Kept
from sslengine.report.content import Fact, Map, Mistake, Thumbs, Views
from sslengine.report.thumbnails import Album

FOLDER, MAP, THUMBS, VIEWS, DATA = "report", "map", "thumbs.json", "views.json", "data.json"
# The config by which a run was judged.
JUDGED = "config_evaluate"
NETWORKS = ("untrained", "trained")
MISTAKES, ODDEST = 12, 6
PICTURE = re.compile(r"data:image/(png|jpeg|webp|gif);base64,[A-Za-z0-9+/=]+")


@dataclass(frozen=True)
class Parts:
    thumbs: Thumbs | None = None
    map: Map | None = None
    views: Sequence[Views] = ()
    data: Sequence[Fact] = ()
    # The fingerprint of the judged images that the map shows; empty: it shows others.
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


def read_parts(folder: Path) -> Parts:
    """Read what is there: nothing is computed, and no image is opened.

    Files that are not as make_parts writes them are not shown.
    """
    try:
        return _read(folder / FOLDER, digest_of_checkpoint(folder))
    except (AttributeError, TypeError, KeyError, ValueError, IndexError):
        return Parts()


def _read(place: Path, weights: str) -> Parts:
    album, held = Album(place / THUMBS), Kept(place, weights).get(MAP)
    thumbs, places = album.thumbs(), {key: row for row, key in enumerate(album.entries)}
    data = [
        Fact(**{**fact, "thumbs": [places[key] for key in fact["thumbs"] if key in places]})
        for fact in read_json(place / DATA).get("facts", [])
    ]
    kept = read_json(place / VIEWS)
    network = kept.get("network", []) if kept.get("weights") == weights else []
    views = [Views(**each) for each in (*kept.get("views", []), *network)]
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
    found = []
    for path in (folder / "checkpoints").glob("*"):
        with suppress(CheckpointError, OSError):
            if is_checkpoint(path):
                sha256 = hashlib.sha256(path_for(path).read_bytes()).hexdigest()
                found.append((read_manifest(path).number, sha256))
    return max(found)[1] if found else ""


def read_json(file: Path) -> dict[str, Any]:
    """Return {} if there is none, or it cannot be read: it is made again."""
    with suppress(OSError, ValueError):
        found = json.loads(file.read_bytes())
        return found if isinstance(found, dict) else {}
    return {}


def as_map(held: Mapping[str, NDArray[Any]], classes: int) -> Map:
    labels = held["labels"]
    shares, by_class = dict[str, float](), dict[str, Sequence[float]]()
    known = labels >= 0
    for name in NETWORKS if known.any() else ():
        same = (labels[held[f"nearest_{name}"]] == labels[:, None]).mean(axis=1) * 100
        shares[name] = float(same[known].mean())
        of_class = [same[labels == number] for number in range(classes)]
        by_class[name] = [float(each.mean()) if len(each) else 0.0 for each in of_class]
    return Map(
        {name: [(x, y) for x, y in held[f"places_{name}"].tolist()] for name in NETWORKS},
        {name: held[f"nearest_{name}"].tolist() for name in NETWORKS},
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
