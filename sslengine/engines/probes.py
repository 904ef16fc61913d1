"""The linear probe of each network and layer, for protocols that score it on further images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sslengine.engines.judged_images import Found, Judged
from sslengine.engines.scoring import Sets
from sslengine.errors import DataError
from sslengine.evaluate.linear import Fitted, linear_probe
from sslengine.evaluate.outcome import Outcome

Key = tuple[str, str]  # network and layer


@dataclass(frozen=True)
class Probes:
    fitted: Mapping[Key, Fitted]
    # What is reported of each, without metrics.
    about: Mapping[Key, Outcome]
    # Why some features have none.
    without: Found


def probes_of(judged: Judged) -> Probes:
    """Collective. DataError if no features have one."""
    probes: dict[Key, Fitted] = {}
    about: dict[Key, Outcome] = {}
    without: Found = {}
    for each in judged.sets:
        key = each.features, each.layer
        try:
            probes[key], about[key] = _probe(judged, each)
        except DataError as reason:
            without[key] = Outcome({}, (str(reason),))
            why = reason
    if not probes:
        raise why
    return Probes(probes, about, without)


def _probe(judged: Judged, sets: Sets) -> tuple[Fitted, Outcome]:
    if sets.labelled is None:
        raise DataError("the images have no labels.")
    how: dict[str, Any] = {"device": judged.run.device, "over_ranks": True, "groups": sets.groups}
    found = linear_probe(*sets.labelled, judged.probe, **how)
    assert found.fitted is not None
    about = {"clean": found.test_accuracy, **found.chosen, "layer": sets.layer}
    return found.fitted, Outcome({}, found.notes, about)
