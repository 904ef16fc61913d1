"""What a run's folder keeps for its page of images and features, read without torch.

    RUN/report/map.npz      places, neighbours and clusters of up to 2,000 images
    RUN/report/thumbs.npz   their thumbnails
    RUN/report/views.json   what the network gets of some images, and what it makes of them
    RUN/report/data.json    the check of the data

make_parts.py writes them. What belongs to an earlier checkpoint is not read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sslengine.checkpoint.manifest import is_checkpoint, path_for, read_manifest
from sslengine.errors import CheckpointError
from sslengine.evaluation.kept import Kept
from sslengine.report.content import Fact, Map, Mistake, Thumbs, Views
from sslengine.report.thumbnails import Album

FOLDER, MAP, THUMBS, VIEWS, DATA = "report", "map", "thumbs.npz", "views.json", "data.json"
NETWORKS = ("untrained", "trained")
MISTAKES, ODDEST = 12, 6


@dataclass(frozen=True)
class Parts:
    thumbs: Thumbs | None = None
    map: Map | None = None
    views: Sequence[Views] = ()
    data: Sequence[Fact] = ()
    # The fingerprint of the judged images that the map shows; empty: it shows others.
    fingerprint: str = ""
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # of the map

    def mistakes(
        self, numbers: NDArray[Any], wanted: NDArray[Any], answers: NDArray[Any]
    ) -> list[Mistake]:
        """Find the judged images whose neighbours agree most on the class of a wrong answer.

        numbers, wanted, answers: of the judged images; those of self.fingerprint. Only images that
        the map shows are found.
        """
        if self.thumbs is None or not self.arrays:
            return []
        thumbs, held = self.thumbs, self.arrays
        place = {int(number): row for row, number in enumerate(held["numbers"])}
        found = []
        for number, right, answer in zip(numbers.tolist(), wanted.tolist(), answers.tolist()):
            row = place.get(number)
            if row is not None and right != answer:
                agree = held["labels"][held["nearest_trained"][row]] == answer
                found.append((-float(held["similar"][row][agree].sum()), row, right, answer))
        return [
            Mistake(row, thumbs.names[row], *(self._called(each) for each in labels))
            for _, row, *labels in sorted(found)[:MISTAKES]
        ]

    def _called(self, label: int) -> str:
        classes = self.thumbs.classes if self.thumbs else ()
        return classes[label] if 0 <= label < len(classes) else str(label)


def read_parts(folder: Path) -> Parts:
    """Read what is there: nothing is computed, and no image is opened."""
    place, weights = folder / FOLDER, digest_of_checkpoint(folder)
    album = Album.read(place / THUMBS)
    held = Kept(place, weights).get(MAP)
    about = json.loads(str(held["about"])) if held is not None else {}
    thumbs, facts = album.thumbs(), read_json(place / DATA).get("facts", [])
    drawn, data = None, [_fact(each, album.places) for each in facts]
    if held is not None and thumbs is not None:
        drawn = as_map(held, len(thumbs.classes))
        data += _oddest(drawn)
    kept = read_json(place / VIEWS)
    pictures = kept.get("views", [])
    pictures += kept.get("network", []) if kept.get("weights") == weights else []
    views = [Views(**each) for each in pictures]
    arrays = held if drawn is not None and held is not None else {}
    return Parts(thumbs, drawn, views, data, about.get("fingerprint", ""), arrays)


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
        by_class[name] = [
            float(same[labels == each].mean()) if (labels == each).any() else 0.0
            for each in range(classes)
        ]
    return Map(
        {name: [(float(x), float(y)) for x, y in held[f"places_{name}"]] for name in NETWORKS},
        {name: held[f"nearest_{name}"].tolist() for name in NETWORKS},
        shares,
        by_class,
        held["clusters"].tolist(),
        [float(each) for each in (1 - held["similar"]).mean(axis=1)],
        held["queries"].tolist(),
    )


def _fact(held: Mapping[str, Any], places: Mapping[str, int]) -> Fact:
    thumbs = [places[key] for key in held["thumbs"] if key in places]
    return Fact(held["what"], held["value"], held["advice"], thumbs)


def _oddest(drawn: Map) -> list[Fact]:
    """The images that are farthest from their neighbours."""
    order = np.argsort(-np.array(drawn.distances), kind="stable")[:ODDEST].tolist()
    far, middle = drawn.distances[order[0]], float(np.median(drawn.distances))
    value = f"mean distance to the ten nearest up to {far:.2f}, median {middle:.2f}"
    return [Fact("oddest images", value, "look at them: they may not belong to the set", order)]
