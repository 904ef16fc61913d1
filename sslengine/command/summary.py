"""What a run's folder says of it, without torch: report, compare and rank show it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sslengine.checkpoint.manifest import is_checkpoint
from sslengine.command.judged_on import images_of
from sslengine.config.yaml_text import load_run
from sslengine.errors import ConfigError, DataError
from sslengine.monitor import history

TRAINED = "trained"


def rank_of(score: float) -> float:
    """A score that is no number is the worst."""
    return -math.inf if math.isnan(score) else score


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
                found[name] = max(value, found.get(name, value), key=rank_of)
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
        tuple(_checkpoints(folder / "checkpoints")),
    )


def _checkpoints(folder: Path) -> list[str]:
    """Files, also those that only point to one, and the folders of sharded runs."""
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    return [path.name for path in paths if path.suffix == ".torch" or is_checkpoint(path)]


def _config(file: Path) -> Any:
    """{} if there is no such file."""
    if not file.is_file():
        return {}
    return load_run(file.read_bytes(), str(file))["config"]


def _evaluation(folder: Path) -> Any:
    file = folder / "evaluation.json"
    if not file.is_file():
        return {}
    with suppress(ValueError):
        found = json.loads(file.read_bytes())
        if isinstance(found, dict) and _are_scores(found.get("scores", [])):
            return found
    raise DataError(f"{file} is no report: remove it, and judge the run again: `sslengine judge`.")


def _are_scores(found: Any) -> bool:
    return isinstance(found, list) and all(map(_is_score, found))


def _is_score(found: Any) -> bool:
    match found:
        case {"features": str(), "layer": str(), "knn": dict() as knn}:
            linear = found.get("linear")
            return _are_numbers(knn.values()) and (linear is None or _are_numbers([linear]))
    return False


def _are_numbers(values: Iterable[Any]) -> bool:
    return all(isinstance(each, (int, float)) for each in values)


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
