"""`other_sets` of EVALUATE.PROTOCOLS: the linear probe of TRAIN's classes on labelled images of
other sets, each in the view of the test images: ImageNet-A, -R, -V2, -Sketch, -ReaL, ObjectNet.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sslengine.engines.judged_images import ALL_OF_THEM, Found, Judged
from sslengine.engines.probes import probes_of
from sslengine.engines.stored import StoredSplit
from sslengine.errors import DataError
from sslengine.evaluation.features import Chosen
from sslengine.evaluation.options import ALL, OtherSetOptions
from sslengine.evaluation.other_classes import Known, Shown, any_match
from sslengine.evaluation.outcome import Outcome

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


def of_other_sets(judged: Judged) -> Found:
    """What one set lacks does not stop the others. Collective."""
    if not judged.other_sets:
        raise DataError("config.EVALUATE.OTHER_SETS names no set of images.")
    probes = probes_of(judged)
    known = Known.of(judged.splits["TRAIN"].classes[0])
    tested, notes = {}, []
    for name, options in judged.other_sets.items():
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
    stored = judged.stored("TEST", {**_changes(judged, options), **ALL_OF_THEM})
    shown = _of_files(stored, options, known) if options.LABELS else _own(stored, options, known)
    rows = [row for row, each in enumerate(shown) if each]
    if not rows:
        raise DataError("no image shows a class of TRAIN.")
    kept = [shown[row] for row in rows]
    among = None if options.ANSWERS == ALL else torch.tensor(sorted(frozenset().union(*kept)))
    return _Tested(stored, torch.tensor(rows), kept, among)


def _changes(judged: Judged, options: OtherSetOptions) -> dict[str, Any]:
    values = {
        "DATA_SOURCES": [options.SOURCE], "DATA_PATHS": [options.PATH] if options.PATH else [],
        "DATASET_NAMES": [], "LABEL_PATHS": [], "DATA_LIMIT": options.LIMIT,
        "LABEL_SOURCES": [] if options.LABELS else [options.SOURCE],
        "LABEL_TYPE": "sample_index" if options.LABELS else "standard",
        "TRANSFORMS": judged.transforms,
    }  # fmt: skip
    return {f"DATA.TEST.{key}": value for key, value in values.items()}


def _of_files(stored: StoredSplit, options: OtherSetOptions, known: Known) -> Shown:
    """By a file of labels, which has all images, also those that cannot be read."""
    everything = torch.arange(len(stored.dataset))
    shown = known.of_images(Path(options.LABELS), stored.relative_paths(everything))
    indices = next(iter(stored.stores.values())).indices
    return [shown[index] for index in indices.tolist()]


def _own(stored: StoredSplit, options: OtherSetOptions, known: Known) -> Shown:
    """By the labels of the source."""
    (classes, *_), file = stored.classes, Path(options.CLASSES) if options.CLASSES else None
    targets = next(iter(stored.stores.values())).targets
    count = max(len(classes.names), classes.width, int(targets.max()) + 1)
    own = known.of_names(classes.names or [str(number) for number in range(count)], file)
    if targets.ndim > 1:
        rows = [row.nonzero().flatten().tolist() for row in targets > 0]
    else:
        rows = [[number] if number >= 0 else [] for number in targets.tolist()]
    return [frozenset().union(*(own[number] for number in row)) for row in rows]
