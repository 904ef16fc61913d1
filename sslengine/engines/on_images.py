"""Protocols that need features of other images, or of another view: `config.EVALUATE.PROTOCOLS`.

Each takes what is judged, on all ranks, and gives an Outcome for each network and layer. One that
cannot be done says why, and the others are computed.

out_of_set: are images of another set recognised by the distance of their features? The score of an
image is its cosine with the K-th nearest training feature (Sun et al., Out-of-Distribution
Detection with Deep Nearest Neighbors, 2022). It needs no labels.

AUROC    the chance that an image of the own set has a higher score than one of the other set
FPR@95   the share of the other set that is accepted by the threshold that accepts 95 % of the own
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sslengine.data.judged_view import described
from sslengine.engines.judged_images import ALL_OF_THEM, FIRST, Found, Judged
from sslengine.engines.protocols import make_row
from sslengine.engines.scoring import Score
from sslengine.errors import DataError
from sslengine.evaluate.features import Rows, expect_finite
from sslengine.evaluate.knn import search
from sslengine.evaluate.options import ON_IMAGES
from sslengine.evaluate.outcome import Outcome, protocol
from sslengine.evaluate.retrieval import copy_detection
from sslengine.progress import progress
from sslengine.registry import PROTOCOLS

log = logging.getLogger("sslengine")

K = 50
ACCEPTED = 0.95


@PROTOCOLS.register("out_of_set")
def judge_outside(judged: Judged) -> Found:
    """Separate the images of EVALUATE.OUTSIDE from the test images."""
    outside = judged.EVALUATE.OUTSIDE
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
        (each.features, each.layer): _add_details(
            out_of_set(
                each.train, each.test, found.stores[each.features].layer(each.layer),
                device=judged.run.device,
            ), about,
        )
        for each in judged.sets
        if each.test is not None
    }  # fmt: skip


@protocol("Out-of-set detection")
def out_of_set(
    train: Rows, inside: Rows, outside: Rows, k: int = K, device: torch.device | None = None
) -> Outcome:
    """Compare features of test images of the own set with those of another one."""
    for rows, split in ((train, "training"), (inside, "test"), (outside, "other")):
        if not len(rows):
            raise DataError(f"there are no {split} features.")
        expect_finite(rows, split)
    used = min(k, len(train))
    note = (f"k={k}: there are only {used} training images; the farthest of them counts",)
    own, other = (search(train, rows, used, device=device).similarities[:, -1].double()
                  for rows in (inside, outside))  # fmt: skip
    return Outcome(
        {"AUROC": 100 * auroc(own, other), "FPR@95": 100 * accept(own, other)},
        note * (used < k),
        {"k": used, "inside": len(own), "outside": len(other)},
    )


def auroc(own: Tensor, other: Tensor) -> float:
    """Return the share of pairs of which the first has the higher score; equal ones count half."""
    ranked = other.sort().values
    lower = torch.searchsorted(ranked, own, right=False)
    not_higher = torch.searchsorted(ranked, own, right=True)
    return float((lower + not_higher).double().mean() / (2 * len(other)))


def accept(own: Tensor, other: Tensor, share: float = ACCEPTED) -> float:
    """Return the share of `other` whose score reaches what `share` of `own` reaches."""
    threshold = own.sort(descending=True).values[math.ceil(share * len(own)) - 1]
    return float((other >= threshold).double().mean())


@PROTOCOLS.register("view_retrieval")
def judge_views(judged: Judged) -> Found:
    """Search for another view of each image among those of all images."""
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
            _add_details(outcome, {"view": described(entries)}), seeds=(seed + 1, seed + 2)
        )
    return found


def _add_details(found: Outcome, about: Mapping[str, Any]) -> Outcome:
    return replace(found, details={**found.details, **about})


def run_on_images(
    judged: Judged, scores: Sequence[Score], write: Callable[[list[Score]], None]
) -> None:
    """Add what is found to the scores. Collective."""
    judged = replace(judged, scores=scores)
    for name in judged.EVALUATE.PROTOCOLS:
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
            outcome = _add_details(outcome, {**about, **_layer_of(layer, outcome)})
            score.protocols[name] = make_row(name, outcome)
        write([*scores])


def _layer_of(layer: str, outcome: Outcome) -> dict[str, Any]:
    return {} if layer == FIRST or "layer" in outcome.details else {"layer": layer}
