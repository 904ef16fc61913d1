"""`other_sets` of EVALUATE.PROTOCOLS: the linear probe of TRAIN's classes on labelled images of
other sets, each in the view of the test images: ImageNet-A, -R, -V2, -Sketch, -ReaL, ObjectNet.

Such a set may have a part of TRAIN's classes, under other names or numbers, or several of an image:

    classes.json    {"n02123045": "cat", "7": ["cat", "kitten"], "aardvark": []}
    labels.json     {"a.jpg": [3], "b.jpg": [3, 7], "c.jpg": []}, or a list of such lists

A class is a name of TRAIN's, or its number there. An answer is right if it is one of the image's
classes. An image without a class of TRAIN's is left out, as in ImageNet-ReaL.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import torch
from torch import Tensor

from sslengine.data.manifest.classes import Classes
from sslengine.engines.features import StoredSplit, paths_of
from sslengine.engines.on_images import Found, Judged, find_probes
from sslengine.errors import DataError, listing, nearest
from sslengine.evaluate.answers import PerClass
from sslengine.evaluate.features import Chosen
from sslengine.evaluate.options import ALL, OtherSetOptions
from sslengine.evaluate.outcome import Outcome
from sslengine.registry import PROTOCOLS

# Of each image: the classes that it shows.
Shown = list[frozenset[int]]


@dataclass(frozen=True)
class Known:
    """TRAIN's classes, by name and by number."""

    numbers: Mapping[str, int]

    @classmethod
    def of(cls, classes: Classes) -> Known:
        """A name that is a number is the class of this number, where TRAIN has names alone."""
        names = classes.by_value
        count = range(len(classes.names) or classes.width)
        by_place = {str(number): number for number in count}
        return cls(names if any(map(str.isdecimal, names)) else {**by_place, **names})

    def number(self, value: Any, where: object) -> int:
        """Number a class of a file."""
        found = self.get(str(value))
        if found is None:
            raise DataError(
                f"{where}: {value!r} is no class of TRAIN. {nearest(str(value), self.numbers)}"
            )
        return found

    def get(self, name: str) -> int | None:
        return self.numbers.get(str(int(name)) if name.isdecimal() else name)

    def number_names(self, names: Sequence[str], file: Path | None) -> list[frozenset[int]]:
        """Number another dataset's classes as here. file: classes.json."""
        if file is None:
            found = [self.get(name) for name in names]
            return [frozenset() if each is None else frozenset([each]) for each in found]
        table = _read(file)
        if not isinstance(table, dict):
            raise DataError(f"{file}: expected names of classes, each with those of TRAIN.")
        unknown = [name for name in table if name not in names]
        if unknown:
            raise DataError(
                f"{file}: {unknown[0]!r} is no class of the images. {nearest(unknown[0], names)}"
            )
        return [self._several(table.get(name, []), file) for name in names]

    def number_images(self, file: Path, paths: Sequence[str]) -> Shown:
        """labels.json. A list has the images in the order of their files' names."""
        table = _read(file)
        if isinstance(table, list):
            if len(table) != len(paths):
                raise DataError(f"{file}: has {len(table)} entries for {len(paths)} images.")
            order = sorted(range(len(paths)), key=lambda place: PurePath(paths[place]).name)
            by_place = dict(zip(order, table, strict=True))
            return [self._several(by_place[place], file) for place in range(len(paths))]
        found = [_entry(table, path) for path in paths]
        if all(each is None for each in found):
            raise DataError(
                f"{file}: has no image of these; it has {listing(table, 3)}, they are "
                f"{listing(paths, 3)}."
            )
        return [self._several([] if each is None else each, file) for each in found]

    def _several(self, value: Any, file: Path) -> frozenset[int]:
        values = value if isinstance(value, list) else [value]
        return frozenset(self.number(each, file) for each in values)


def _entry(table: Mapping[str, Any], path: str) -> Any:
    """Find it by the path, the file's name, or this without its ending."""
    pure = PurePath(path)
    return next((table[key] for key in (path, pure.name, pure.stem) if key in table), None)


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: cannot be read: {error}") from error


def any_match(answers: Tensor, shown: Shown) -> dict[str, float]:
    """The accuracy, and if each image has one class what unequal classes hide."""
    right = [int(answer) in each for answer, each in zip(answers.tolist(), shown, strict=True)]
    if any(len(each) > 1 for each in shown):
        return {"accuracy": 100 * sum(right) / len(right)}
    labels = torch.tensor([number for each in shown for number in each])
    metrics = PerClass.count(answers, labels).metrics
    return {name: metrics[name] for name in ("accuracy", "balanced accuracy", "macro F1")}


log = logging.getLogger("sslengine")


@dataclass(frozen=True)
class _Tested:
    """The images of a set that show a class of TRAIN."""

    stored: StoredSplit
    rows: Tensor
    shown: Shown
    among: Tensor | None  # the classes that may be answered

    @property
    def note(self) -> str:
        images = len(next(iter(self.stored.stores.values())).indices)
        lacking = images - len(self.rows)
        text = f"{lacking} of {images} images show no class of TRAIN: they are left out"
        return text if lacking else ""


@PROTOCOLS.register("other_sets")
def judge_other_sets(judged: Judged) -> Found:
    """Judge each set: what one lacks does not stop the others. Collective."""
    if not judged.EVALUATE.OTHER_SETS:
        raise DataError("config.EVALUATE.OTHER_SETS names no set of images.")
    probes = find_probes(judged)
    known = Known.of(judged.splits["TRAIN"].classes[0])
    tested, notes = {}, []
    for name, options in judged.EVALUATE.OTHER_SETS.items():
        try:
            tested[name] = _tested(judged, options, known)
            notes += [f"{name}: {note}" for note in [tested[name].note] if note]
        except DataError as reason:
            log.warning("other_sets: %s: %s", name, reason)
            notes.append(f"{name}: {reason}")
    found = dict(probes.without)
    for (network, layer), probe in probes.fitted.items():
        metrics: dict[str, float] = {}
        for name, each in tested.items():
            rows = Chosen(each.stored.stores[network].layer(layer), each.rows)
            matched = any_match(probe.answers(rows, each.among), each.shown)
            metrics |= {f"{name} {metric}": value for metric, value in matched.items()}
        about = probes.about[network, layer]
        details = {**about.details, "images": _counts(tested)}
        found[network, layer] = Outcome(metrics, (*notes, *about.notes), details)
    return found


def _counts(tested: Mapping[str, _Tested]) -> dict[str, int]:
    return {name: len(each.rows) for name, each in tested.items()}


def _tested(judged: Judged, options: OtherSetOptions, known: Known) -> _Tested:
    labels: dict[str, Any] = {} if options.LABELS else {
        "LABEL_SOURCES": [options.SOURCE], "LABEL_TYPE": "standard"
    }  # fmt: skip
    stored = judged.stored_set(options.SOURCE, options.PATH, DATA_LIMIT=options.LIMIT, **labels)
    shown = _read_labels(stored, options, known) if options.LABELS else _own(stored, options, known)
    rows = [row for row, each in enumerate(shown) if each]
    if not rows:
        raise DataError("no image shows a class of TRAIN.")
    kept = [shown[row] for row in rows]
    among = None if options.ANSWERS == ALL else torch.tensor(sorted(frozenset().union(*kept)))
    return _Tested(stored, torch.tensor(rows), kept, among)


def _read_labels(stored: StoredSplit, options: OtherSetOptions, known: Known) -> Shown:
    """Read a file of labels, which has all images, also those that cannot be read."""
    everything = torch.arange(len(stored.dataset))
    shown = known.number_images(
        Path(options.LABELS), paths_of(stored.dataset, everything, relative=True)
    )
    indices = next(iter(stored.stores.values())).indices
    return [shown[index] for index in indices.tolist()]


def _own(stored: StoredSplit, options: OtherSetOptions, known: Known) -> Shown:
    """Translate the labels of the source."""
    (classes, *_), file = stored.classes, Path(options.CLASSES) if options.CLASSES else None
    targets = next(iter(stored.stores.values())).targets
    count = max(len(classes.names), classes.width, int(targets.max()) + 1)
    own = known.number_names(classes.names or [str(number) for number in range(count)], file)
    if targets.ndim > 1:
        rows = [row.nonzero().flatten().tolist() for row in targets > 0]
    else:
        rows = [[number] if number >= 0 else [] for number in targets.tolist()]
    return [frozenset().union(*(own[number] for number in row)) for row in rows]
