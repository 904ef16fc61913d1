"""Choose the checkpoints to keep: the last few, one in every so many, the best. By default all."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sslengine.checkpoint import files
from sslengine.checkpoint.manifest import Manifest, read_manifest
from sslengine.checkpoint.options import BestOptions, CheckpointOptions
from sslengine.dotted import leaves, no_such_metric
from sslengine.errors import CheckpointError


def saved(folder: Path) -> list[Manifest]:
    """Read the manifests of a folder's checkpoints, newest first; files without one are skipped."""
    found = []
    for path in files.list_checkpoints(folder):
        try:
            found.append(read_manifest(path))
        except CheckpointError:
            continue
    return found


def surplus(manifests: list[Manifest], options: CheckpointOptions) -> list[Manifest]:
    """Return the manifests of checkpoints that no rule keeps. manifests: newest first."""
    if options.KEEP_LAST < 0:
        return []
    best = best_of(manifests, options.BEST)
    every = options.KEEP_EVERY
    return [
        each
        for each in manifests[options.KEEP_LAST :]
        if each is not best and not (every > 0 and each.number % every == 0)
    ]


def remove_surplus(folder: Path, options: CheckpointOptions) -> None:
    """Remove them, after the newest was read back; never the pointers' targets."""
    pointers = (folder / files.POINTER, folder / files.BEST)
    pointed_to = {os.readlink(link) for link in pointers if link.is_symlink()}
    for manifest in surplus(saved(folder), options):
        if manifest.file not in pointed_to:  # a listed file's name: `read_manifest` checks it
            files.remove(folder / manifest.file)


def keep_best(folder: Path, options: BestOptions) -> None:
    """Let `best.torch` point to the best checkpoint so far."""
    best = best_of(saved(folder), options)
    link = folder / files.BEST
    if best is not None and not (link.is_symlink() and os.readlink(link) == best.file):
        files.point_to(folder, files.BEST, best.file)


def best_of(manifests: list[Manifest], options: BestOptions) -> Manifest | None:
    """Find the best checkpoint, of equally good ones the newest; None without a metric."""
    scored = [(value_at(each.results, options.metric), each) for each in manifests]
    known = [(value, each) for value, each in scored if value is not None]
    if not options.METRIC or not known:
        return None
    sign = 1.0 if options.MODE == "max" else -1.0
    return max(known, key=lambda pair: sign * pair[0])[1]


def value_at(results: Mapping[str, Any], path: str) -> float | None:
    """Return `test.accuracy_list_meter.top_1.0` of {"test": {"accuracy_list_meter": ...}}."""
    value = dict(leaves(results)).get(path)
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def unknown_metric(results: Mapping[str, Any], path: str) -> str | None:
    """Return the warning for a metric that is missing although its phase has reported others."""
    split, _, rest = path.partition(".")
    if split not in results or value_at(results, path) is not None:
        return None
    if rest.startswith("online.") and "online" not in results[split]:
        return None  # not every phase is evaluated: HOOKS.ONLINE_EVAL.EVERY
    known = dict(leaves({split: results[split]}))
    return f"config.CHECKPOINT.BEST.METRIC: {no_such_metric(path, known)}"
