"""Protocols that need features of other images, or of another view: `config.EVALUATE.PROTOCOLS`.

Each takes what is judged, on all ranks, and gives an Outcome for each network and layer. One that
cannot be done says why, and the others are computed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from sslengine.data.judged_view import described
from sslengine.engines.judged_images import ALL_OF_THEM, FIRST, Found, Judged
from sslengine.engines.protocols import row_of
from sslengine.engines.scoring import Score
from sslengine.errors import DataError
from sslengine.evaluate.options import ON_IMAGES, OutsideOptions
from sslengine.evaluate.out_of_set import out_of_set
from sslengine.evaluate.outcome import Outcome
from sslengine.evaluate.retrieval import copy_detection
from sslengine.progress import progress
from sslengine.registry import PROTOCOLS

log = logging.getLogger("sslengine")


@PROTOCOLS.register("out_of_set")
def judge_outside(judged: Judged) -> Found:
    """How well features separate the images of EVALUATE.OUTSIDE from the test images."""
    outside: OutsideOptions = judged.outside
    if not outside.SOURCE:
        raise DataError("config.EVALUATE.OUTSIDE.SOURCE names no other set of images.")
    values = {
        "DATA_SOURCES": [outside.SOURCE], "DATA_PATHS": [outside.PATH] if outside.PATH else [],
        "DATASET_NAMES": [], "LABEL_SOURCES": [], "LABEL_PATHS": [], "LABEL_TYPE": "sample_index",
        "DATA_LIMIT": outside.LIMIT, "TRANSFORMS": judged.transforms,
    }  # fmt: skip
    changes = {f"DATA.TEST.{key}": value for key, value in values.items()}
    found = judged.stored("TEST", {**changes, **ALL_OF_THEM})
    if judged.test != "TEST":
        raise DataError("there are no test images to compare with.")
    about = {"outside": f"{outside.SOURCE} {outside.PATH}".strip()}
    return {
        (each.features, each.layer): _with(
            out_of_set(
                each.train, each.test, found.stores[each.features].layer(each.layer),
                device=judged.run.device,
            ), about,
        )
        for each in judged.sets
        if each.test is not None
    }  # fmt: skip


@PROTOCOLS.register("view_retrieval")
def judge_views(judged: Judged) -> Found:
    """Does an augmented view of an image find another view of it among those of all images?"""
    entries = judged.before_tensor(
        {"name": "RandomResizedCrop", "size": judged.side, "scale": [0.2, 1.0]},
        {"name": "RandomHorizontalFlip"},
        {"name": "ColorJitter", "brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1},
        all_before=True,
    )
    seed = int(judged.run.config.SEED_VALUE)
    split = f"DATA.{judged.test}"
    both = [
        judged.stored(judged.test, {f"{split}.TRANSFORMS": entries, "SEED_VALUE": seed + more})
        for more in (1, 2)
    ]
    found: Found = {}
    for each in judged.sets:
        queries, database = (one.stores[each.features].layer(each.layer) for one in both)
        originals = torch.arange(len(queries))
        outcome = copy_detection(queries, database, originals, judged.run.device)
        found[each.features, each.layer] = replace(
            _with(outcome, {"view": described(entries)}), seeds=(seed + 1, seed + 2)
        )
    return found


def _with(found: Outcome, about: Mapping[str, Any]) -> Outcome:
    return replace(found, details={**found.details, **about})


def run_on_images(
    judged: Judged, scores: Sequence[Score], write: Callable[[list[Score]], None]
) -> None:
    """Add what is found to the scores. Collective."""
    for name in judged.options.PROTOCOLS:
        if name not in ON_IMAGES:
            continue
        try:
            with progress(f"protocol {name}"):
                found = PROTOCOLS.get(name)(judged)
        except DataError as reason:
            log.warning("%s: %s", name, reason)
            found = {(judged.networks[0].name, FIRST): Outcome({}, (str(reason),))}
        for (network, layer), outcome in found.items():
            of = [each for each in scores if each.features == network]
            score = next((each for each in of if each.layer == layer), of[0])
            about = {"network": score.about.get("network", network)}
            outcome = _with(outcome, {**about, **_layer_of(layer, outcome)})
            score.protocols[name] = row_of(name, outcome)
        write([*scores])


def _layer_of(layer: str, outcome: Outcome) -> dict[str, Any]:
    return {} if layer == FIRST or "layer" in outcome.details else {"layer": layer}
