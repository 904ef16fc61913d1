"""What a run's folder says of it, without torch: report, compare and rank show it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sslengine.command.judged_on import images_of
from sslengine.errors import ConfigError, DataError
from sslengine.monitor import history

TRAINED = "trained"


@dataclass(frozen=True)
class Summary:
    folder: Path
    method: str
    network: str
    epochs: Any
    num_iterations: Any  # the length of a run that has no epochs
    iterations: int  # trained so far
    # The last value of each metric of the train and test phases.
    metrics: Mapping[str, float]
    # evaluation.json, as `sslengine judge` leaves it; {} without one.
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    # What it was judged on, with the keys of DATA that chose it.
    images: Mapping[str, Any] = field(default_factory=dict)
    checkpoints: tuple[str, ...] = ()

    @property
    def scores(self) -> dict[str, float]:
        """Of the trained trunk: linear, knn@20 ... The best layer of several."""
        found: dict[str, float] = {}
        for each in self.evaluation.get("scores", []):
            if each["features"] != TRAINED:
                continue
            values = {f"knn@{k}": value for k, value in each["knn"].items()}
            if each.get("linear") is not None:
                values["linear"] = each["linear"]
            for name, value in values.items():
                found[name] = max(value, found.get(name, value))
        return found

    @property
    def metric(self) -> str | None:
        """Of all scores: accuracy, or mAP where images have several classes."""
        return self.evaluation.get("metric", "accuracy") if self.scores else None

    def as_dict(self) -> dict[str, Any]:
        own = {"folder": str(self.folder), "scores": self.scores, "metric": self.metric}
        return {**vars(self), **own}


def read(folder: Path) -> Summary:
    file = folder / "config.yaml"
    if not file.is_file():
        raise ConfigError(f"{folder} has no config.yaml: it is not the folder of a run.")
    config = _config(file)
    rows = history.read(folder, None) if (folder / "metrics.jsonl").exists() else []
    evaluation = _evaluation(folder)
    return Summary(
        folder,
        _at(config, "LOSS.name") or _at(config, "MODEL.BASE_MODEL_NAME"),
        _network(config),
        _at(config, "OPTIMIZER.num_epochs"),
        _at(config, "OPTIMIZER.num_iterations"),
        max((row["iteration"] for row in rows if "iteration" in row), default=0),
        _last(rows),
        evaluation,
        images_of(evaluation, _config(folder / "config_evaluate.yaml")) if evaluation else {},
        tuple(sorted(path.name for path in (folder / "checkpoints").glob("*.torch"))),
    )


def _config(file: Path) -> Any:
    """{} if there is no such file."""
    text = file.read_text() if file.is_file() else ""
    return (yaml.safe_load(text) or {}).get("config", {})  # type: ignore[no-untyped-call]


def _evaluation(folder: Path) -> Any:
    file = folder / "evaluation.json"
    if not file.is_file():
        return {}
    with suppress(ValueError):
        found = json.loads(file.read_bytes())
        if isinstance(found, dict):
            return found
    raise DataError(f"{file} is no report: remove it, and judge the run again: `sslengine judge`.")


def _at(config: Any, path: str) -> Any:
    for key in path.split("."):
        config = config.get(key, {}) if isinstance(config, dict) else {}
    return config if config != {} else ""


def _network(config: Any) -> str:
    name = _at(config, "MODEL.TRUNK.NAME")
    library = str(name).upper()
    return str(_at(config, f"MODEL.TRUNK.{library}.model") or name)


def _last(rows: list[dict[str, Any]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for row in rows:
        if row["kind"] == "phase":
            for name, value in row.items():
                if isinstance(value, (int, float)) and name not in ("iteration", "epoch"):
                    found[f"{row['split']}.{name}"] = value
    return found
