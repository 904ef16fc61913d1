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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sslengine.config.sections import read, replaced
from sslengine.data.judged_view import described
from sslengine.data.options import DataOptions
from sslengine.engines.features import Network, StoredSplit, store_split
from sslengine.engines.run import Run
from sslengine.engines.scoring import Score, Sets, make_row
from sslengine.errors import DataError
from sslengine.evaluate.answers import expect_probe
from sslengine.evaluate.features import Rows, expect_finite
from sslengine.evaluate.knn import search
from sslengine.evaluate.linear import Fitted
from sslengine.evaluate.options import ON_IMAGES, EvaluateOptions, LinearProbeOptions
from sslengine.evaluate.outcome import Outcome, protocol
from sslengine.evaluate.retrieval import copy_detection
from sslengine.progress import progress
from sslengine.registry import PROTOCOLS

log = logging.getLogger("sslengine")

Key = tuple[str, str]  # network and layer
Found = dict[Key, Outcome]
FIRST = "the first"  # layer
# Where TEST is other images: no share of them, nor a list, is taken.
ALL_OF_THEM = {
    "DATA.HOLD_OUT.SHARE": 0.0, "DATA.TEST.DATA_LIMIT_SAMPLING.SHARE": 0.0,
    "DATA.TEST.DATA_LIMIT_SAMPLING.LIST": "",
}  # fmt: skip
K = 50
ACCEPTED = 0.95


@dataclass(frozen=True)
class Judged:
    """What is judged, and how features of further images are computed."""

    run: Run
    networks: Sequence[Network]
    sets: Sequence[Sets]
    splits: Mapping[str, StoredSplit]
    folder: Path
    EVALUATE: EvaluateOptions
    probe: LinearProbeOptions
    weights: Path | None
    # Of `sets`, by the labels.
    scores: Sequence[Score] = ()

    @property
    def test(self) -> str:
        """The split whose images are judged."""
        return "TEST" if "TEST" in self.splits else "TRAIN"

    @property
    def transforms(self) -> list[dict[str, Any]]:
        data = read(self.run.config, DataOptions)
        return [dict(each) for each in getattr(data, self.test).TRANSFORMS]

    def before_tensor(self, *entries: dict[str, Any], all_before: bool = False) -> list[Any]:
        """The judged view with further transforms; all_before: in place of those before."""
        names = [each["name"] for each in self.transforms]
        if "ToTensor" not in names:
            raise DataError(
                f"config.DATA.{self.test}.TRANSFORMS: expected ToTensor among them, which other "
                f"transforms can precede."
            )
        place = names.index("ToTensor")
        return [*self.transforms[: 0 if all_before else place], *entries, *self.transforms[place:]]

    @property
    def side(self) -> int:
        """The side of the judged images, in pixels."""
        (image,) = self.splits[self.test].dataset[0, 0]["data"]
        return int(min(image.shape[-2:]))

    def stored(
        self, split: str, changes: Mapping[str, Any], networks: Sequence[Network] = ()
    ) -> StoredSplit:
        """The features of other images. changes: of the config. Collective."""
        of, dtype = networks or self.networks, self.EVALUATE.DTYPE
        return store_split(self.run_with(changes), split, of, self.folder, (), dtype)

    def stored_set(
        self, source: str, path: str, networks: Sequence[Network] = (), **values: Any
    ) -> StoredSplit:
        """The features of another set in the judged view. values: keys of DATA.TEST. Collective."""
        keys = {
            "DATA_SOURCES": [source], "DATA_PATHS": [path] if path else [], "DATASET_NAMES": [],
            "LABEL_SOURCES": [], "LABEL_PATHS": [], "LABEL_TYPE": "sample_index",
            "TRANSFORMS": self.transforms, **values,
        }  # fmt: skip
        changes = {f"DATA.TEST.{key}": value for key, value in keys.items()}
        return self.stored("TEST", {**changes, **ALL_OF_THEM}, networks)

    def run_with(self, changes: Mapping[str, Any]) -> Run:
        config = replaced(self.run.config, changes)
        return replace(self.run, resolved=replace(self.run.resolved, config=config))


def run_on_images(
    judged: Judged, scores: Sequence[Score], write: Callable[[list[Score]], None]
) -> None:
    """Add what is found to the scores. Collective."""
    judged = replace(judged, scores=scores)
    for name in filter(ON_IMAGES.__contains__, judged.EVALUATE.PROTOCOLS):
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
            if layer != FIRST and "layer" not in outcome.details:
                about["layer"] = layer
            score.protocols[name] = make_row(name, _add_details(outcome, about))
        write([*scores])


def _add_details(found: Outcome, about: Mapping[str, Any]) -> Outcome:
    return replace(found, details={**found.details, **about})


# ---- the linear probe, for protocols that score it on further images


@dataclass(frozen=True)
class Probes:
    """The linear probe of each network and layer."""

    fitted: Mapping[Key, Fitted]
    # What is reported of each, without metrics.
    about: Mapping[Key, Outcome]
    # Why some features have none.
    without: Found


def find_probes(judged: Judged) -> Probes:
    """Take those that were scored; DataError if no features have one."""
    probes: dict[Key, Fitted] = {}
    about: dict[Key, Outcome] = {}
    without: Found = {}
    for each in judged.scores:
        key = each.features, each.layer
        try:
            found, probes[key] = expect_probe(each.probe)
        except DataError as reason:
            without[key] = Outcome({}, (str(reason),))
            why = reason
            continue
        details = {"clean": found.test_accuracy, **found.chosen, "layer": each.layer}
        about[key] = Outcome({}, found.notes, details)
    if not probes:
        raise why
    return Probes(probes, about, without)


# ---- another set of images


@PROTOCOLS.register("out_of_set")
def judge_outside(judged: Judged) -> Found:
    """Separate the images of EVALUATE.OUTSIDE from the test images."""
    outside = judged.EVALUATE.OUTSIDE
    if not outside.SOURCE:
        raise DataError("config.EVALUATE.OUTSIDE.SOURCE names no other set of images.")
    if judged.test != "TEST":
        raise DataError("there are no test images to compare with.")
    found = judged.stored_set(outside.SOURCE, outside.PATH, DATA_LIMIT=outside.LIMIT)
    about = {"outside": f"{outside.SOURCE} {outside.PATH}".strip()}
    outcomes: Found = {}
    for each in judged.sets:
        if each.test is not None:
            other = found.stores[each.features].layer(each.layer)
            outcome = out_of_set(each.train, each.test, other, device=judged.run.device)
            outcomes[each.features, each.layer] = _add_details(outcome, about)
    return outcomes


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


# ---- another view


@PROTOCOLS.register("view_retrieval")
def judge_views(judged: Judged) -> Found:
    """Search for another view of each image among those of all images."""
    entries = judged.before_tensor(
        {"name": "RandomResizedCrop", "size": judged.side, "scale": [0.2, 1.0]},
        {"name": "RandomHorizontalFlip"},
        {"name": "ColorJitter", "brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1},
        all_before=True,
    )
    seeds = tuple(int(judged.run.config.SEED_VALUE) + more for more in (1, 2))
    view = {f"DATA.{judged.test}.TRANSFORMS": entries}
    both = [judged.stored(judged.test, {**view, "SEED_VALUE": seed}) for seed in seeds]
    found: Found = {}
    for each in judged.sets:
        queries, database = (one.stores[each.features].layer(each.layer) for one in both)
        originals = torch.arange(len(queries))
        outcome = copy_detection(queries, database, originals, judged.run.device)
        outcome = _add_details(outcome, {"view": described(entries)})
        found[each.features, each.layer] = replace(outcome, seeds=seeds)
    return found
