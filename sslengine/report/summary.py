"""What report and its `--json` show of a run; the runs that a command names, and their images.

Scores by other metrics, or on other images, have no order. Images are the same if their
fingerprints are, and those of their labels, wherever they are; where a report has none, as of a
stream, if they are in the same place.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sslengine.errors import ConfigError, listing
from sslengine.monitor.run_facts import (
    TRAINED,
    Facts,
    checkpoints_in,
    is_run,
    read_facts,
    read_judgements,
    scores_of,
)
from sslengine.monitor.verdict import judge_run

SWEPT = "sweep_*"
_SPLITS = ("train", "test")


def rank_of(score: float) -> float:
    """A score that is no number is the worst."""
    return -math.inf if math.isnan(score) else score


@dataclass(frozen=True)
class Summary:
    facts: Facts

    @property
    def folder(self) -> Path:
        return self.facts.folder

    @cached_property
    def scores(self) -> dict[str, float]:
        """Return the trained trunk's linear, knn@20 ...; of several layers the best."""
        return scores_in(self.facts.evaluation)

    @property
    def metric(self) -> str | None:
        """Name what scores are: accuracy, or mAP where images have several classes."""
        return self.facts.evaluation.get("metric", "accuracy") if self.scores else None

    @property
    def images(self) -> dict[str, Any]:
        """Describe the images that it was judged on."""
        return images_of(self.facts.evaluation)

    @property
    def last(self) -> dict[str, float]:
        """The last value of each metric of the train and test phases."""
        found: dict[str, float] = {}
        for row in self.facts.rows:
            for name, value in row.items() if row["kind"] == "phase" else ():
                numeric = isinstance(value, (int, float))
                if numeric and name not in ("iteration", "epoch", "time"):
                    found[f"{row['split']}.{name}"] = value
        return found

    def as_dict(self) -> dict[str, Any]:
        facts, verdict = self.facts, judge_run(self.facts)
        epochs = facts.config.get("OPTIMIZER", {}).get("num_epochs") or ""
        return {
            "folder": str(self.folder), "method": facts.method, "network": facts.network,
            "status": vars(facts.status), "verdict": vars(verdict), "epochs": epochs,
            "iterations": facts.status.step, "num_iterations": facts.status.steps,
            "seconds": facts.seconds, "metrics": self.last, "scores": self.scores,
            "metric": self.metric, "images": self.images, "evaluation": facts.evaluation,
            "judgements": read_judgements(facts), "starts": facts.starts,
            "checkpoints": checkpoints_in(self.folder / "checkpoints"),
        }  # fmt: skip


def read(folder: Path) -> Summary:
    return Summary(read_facts(folder))


def scores_in(report: Mapping[str, Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for each in scores_of(report, TRAINED):
        name = each.metric.replace("knn_", "knn@")
        found[name] = max(each.value, found.get(name, each.value), key=rank_of)
    return found


def runs_in(paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Return the folders of runs, and a note on each path that is none."""
    found: list[Path] = []
    notes: list[str] = []
    for path in paths:
        if not path.exists():
            raise ConfigError(f"{path} is not there: it is not the folder of a run.")
        runs = [path] if is_run(path) else sweep_of(path)
        found += runs
        if not runs:
            notes.append(f"passed over: {path} is not the folder of a run")
    if not found:
        raise ConfigError(
            f"{', '.join(map(str, paths[:5]))}: it is not the folder of a run, which has a "
            f"config.yaml. `sslengine train` makes one."
        )
    return list(dict.fromkeys(found)), notes


def sweep_of(folder: Path) -> list[Path]:
    """Return the runs of a sweep's folder in their order; [] if it is none."""
    found = [each for each in folder.glob(SWEPT) if is_run(each)]
    return sorted(found, key=lambda each: (len(each.name), each.name))


# ---- images that scores are of


def images_of(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return how many images of each split a report is of, what identifies them, their place."""
    rows = report.get("scores", ())
    found: dict[str, Any] = {**rows[0].get("about", {}).get("images", {})} if rows else {}
    for split, each in report.get("images", {}).items():
        known = {f"{split}.{key}": each.get(key) for key in ("fingerprint", "labels")}
        found |= {key: value for key, value in known.items() if value}
    return {**found, "data": report["data"]} if "data" in report else found


def numbers(images: Mapping[str, Any]) -> str:
    return ", ".join(f"{images[split]} {split} images" for split in _SPLITS if split in images)


def fingerprints(images: Mapping[str, Any]) -> str:
    """Write them with a few digits; empty if there is none."""
    found = {split: images.get(f"{split.upper()}.fingerprint") for split in _SPLITS}
    return ", ".join(f"{split} {_shorten(value)}" for split, value in found.items() if value)


def differs_in(judged: Sequence[Summary]) -> list[str]:
    """Return in what runs differ whose scores are put side by side: metric, images."""
    several = {"metric": {each.metric for each in judged}, "images": _group_by_images(judged)}
    return [name for name, found in several.items() if len(found) > 1]


def list_incomparable(judged: Sequence[Summary]) -> Iterator[str]:
    """Yield which scores cannot be compared, with the keys in which their images differ."""
    metrics = dict.fromkeys(str(each.metric) for each in judged)
    if len(metrics) > 1:
        yield f"scores of different metrics cannot be compared: {', '.join(metrics)}"
    groups = _group_by_images(judged)
    if len(groups) > 1:
        yield "scores on different images cannot be compared:"
        sets = [group[0].images for group in groups]
        unlike = [name for name in dict.fromkeys(name for each in sets for name in each)
                  if len({str(each.get(name)) for each in sets}) > 1]  # fmt: skip
        for group, images in zip(groups, sets):
            told = (f"{name} {_shorten(images[name])}" for name in unlike if name in images)
            yield f"{listing((str(each.folder) for each in group), 3)}: {', '.join(told)}"


def _group_by_images(judged: Sequence[Summary]) -> list[list[Summary]]:
    """Put runs together that were judged on the same images."""
    found: dict[str, list[Summary]] = {}
    for each in judged:
        images = {"data": str(each.folder), **each.images}
        splits = [split for split in _SPLITS if split in images]
        if splits and all(f"{split.upper()}.fingerprint" in images for split in splits):
            del images["data"]
        found.setdefault(json.dumps(images, sort_keys=True, default=str), []).append(each)
    return list(found.values())


def _shorten(value: Any) -> str:
    text = str(value)
    return text[7:19] if text.startswith("sha256:") else text
