"""`corruptions` of EVALUATE.PROTOCOLS: the linear probe on corrupted test images.

The probe is fitted to clean training images. The test images are corrupted at the size that the
network sees, by the fifteen functions of ImageNet-C, with draws that depend on the seed and the
image. The error of a corruption, summed over the severities, is divided by that of the untrained
trunk: mCE is the mean of these ratios, 100 % as good as untrained.

What a corruption of a severity gave is kept with the features: after a kill `judge` continues
with the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sslengine.config.sections import read
from sslengine.data.options import DataOptions
from sslengine.distributed.collectives import broadcast_object, sum_over_ranks
from sslengine.distributed.ranks import is_primary
from sslengine.engine.build import build_run_precision
from sslengine.engines.features import features_of, ordered_feed
from sslengine.engines.on_images import Found, Judged, Key, find_probes
from sslengine.errors import DataError
from sslengine.evaluate.linear import Fitted
from sslengine.evaluate.outcome import Outcome
from sslengine.evaluate.store import Kept, short_name
from sslengine.monitor.run_facts import UNTRAINED
from sslengine.registry import PROTOCOLS

# Of each corruption and severity: right answers, and images.
Counts = dict[tuple[str, int], Tensor]


@PROTOCOLS.register("corruptions")
def judge_corruptions(judged: Judged) -> Found:
    if judged.test != "TEST":
        raise DataError("there are no test images.")
    options = judged.EVALUATE.CORRUPTIONS
    given = find_probes(judged)
    probes, about, outcomes = given.fitted, given.about, given.without
    counts: dict[Key, Counts] = {key: {} for key in probes}
    kept = _kept(judged, probes)
    for kind in options.KINDS:
        for severity in options.SEVERITIES:
            entry = {"name": "Corrupt", "kind": kind, "severity": severity}
            right = partial(_right, judged, judged.before_tensor(entry), probes)
            for key, found in _once(kept, f"{kind}-{severity}", right, probes).items():
                counts[key][kind, severity] = found
    errors = {key: _errors(of) for key, of in counts.items()}
    for key in probes:
        details = {**about[key].details, "severities": [*options.SEVERITIES]}
        said = replace(about[key], details=details)
        outcomes[key] = _outcome(errors[key], errors.get((UNTRAINED, key[1])), said)
    return outcomes


def _kept(judged: Judged, probes: Mapping[Key, Fitted]) -> Kept:
    stores = {split: {name: each.folder.name for name, each in found.stores.items()}
              for split, found in judged.splits.items()}  # fmt: skip
    name = short_name({"stores": stores, "probe": repr(judged.probe), "of": [*probes]})
    return Kept(judged.folder / f"corruptions-{name}", name)


def _once(
    kept: Kept, name: str, compute: Callable[[], dict[Key, Tensor]], keys: Iterable[Key]
) -> dict[Key, Tensor]:
    """Collective."""
    held = broadcast_object(kept.get(name) if is_primary() else None)
    if held is not None:
        return dict(zip(keys, torch.from_numpy(held["counts"]), strict=True))
    found = compute()
    if is_primary():
        kept.put(name, {"counts": torch.stack([found[key] for key in keys]).numpy()})
    return found


def _right(judged: Judged, view: Sequence[Any], probes: Mapping[Key, Fitted]) -> dict[Key, Tensor]:
    """Right answers and images, over all ranks."""
    run = judged.run_with({"DATA.TEST.TRANSFORMS": view})
    options = read(run.config, DataOptions).TEST
    precision = build_run_precision(run.config, run.device)
    counts = {key: torch.zeros(2, dtype=torch.float64) for key in probes}
    feed = ordered_feed(run.config, "TEST", run.device, judged.splits["TRAIN"].classes)
    try:
        for batch in feed.batches():
            for network in judged.networks:
                found = features_of(batch, network.compute, options, precision)
                known = found.targets >= 0
                for layer, rows in found.layers.items():
                    probe = probes.get((network.name, layer))
                    if probe is None or not known.any():
                        continue
                    best = probe.logits(rows[known].flatten(1)).argmax(dim=1)
                    right = (best == probe.places(found.targets[known])).sum().cpu()
                    counts[network.name, layer] += torch.stack([right, known.sum()]).double()
    finally:
        feed.close()
    return {key: sum_over_ranks(each.to(judged.run.device)).cpu() for key, each in counts.items()}


def _errors(counts: Counts) -> dict[str, list[float]]:
    """Return by corruption a share for each severity."""
    found: dict[str, list[float]] = {}
    for (kind, _), (right, images) in counts.items():
        found.setdefault(kind, []).append(1 - float(right / images))
    return found


def _outcome(
    errors: Mapping[str, list[float]],
    untrained: Mapping[str, list[float]] | None,
    about: Outcome,
) -> Outcome:
    means = {kind: sum(each) / len(each) for kind, each in errors.items()}
    metrics = {"mean accuracy": 100 * (1 - sum(means.values()) / len(means))}
    notes = about.notes
    if untrained and all(map(sum, untrained.values())):
        ratios = [sum(each) / sum(untrained[kind]) for kind, each in errors.items()]
        metrics["mCE"] = 100 * sum(ratios) / len(ratios)
    else:
        notes += ("there is no mCE: the untrained trunk makes no error, or has no such layer",)
    metrics |= {kind: 100 * (1 - each) for kind, each in means.items()}
    return Outcome(metrics, notes, {**about.details, "errors": dict(errors)})
