"""What report, rank and `--json` show of a run, and the runs that a command names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sslengine.errors import ConfigError
from sslengine.monitor.run_facts import (
    TRAINED,
    Facts,
    checkpoints_in,
    config_in,
    is_run,
    read_facts,
    read_judgements,
    values_of,
)
from sslengine.monitor.verdict import judge_run
from sslengine.report.judged_on import images_of

SWEPT = "sweep_*"


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
        """Of the trained trunk: linear, knn@20 ... The best layer of several."""
        return scores_in(self.facts.evaluation)

    @property
    def metric(self) -> str | None:
        """Of all scores: accuracy, or mAP where images have several classes."""
        return self.facts.evaluation.get("metric", "accuracy") if self.scores else None

    @cached_property
    def images(self) -> Mapping[str, Any]:
        """What it was judged on, with the keys of DATA that chose it."""
        evaluation = self.facts.evaluation
        config = config_in(self.folder / "config_evaluate.yaml")
        return images_of(evaluation, config) if evaluation else {}

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


def scores_in(evaluation: Mapping[str, Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for each in evaluation.get("scores", []):
        if each["features"] == TRAINED:
            for name, value in values_of(each).items():
                name = name.replace("knn_", "knn@")
                found[name] = max(value, found.get(name, value), key=rank_of)
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
