"""What a run's folder says of it, read without torch: for the verdict, the page, tables of runs.

    status.json     the newest start's state; a killed run's still says `running`
    starts.jsonl    a line a start: the command, the machine, the code, the step it begins at

Rank 0 writes these two while it holds the lock of the run's folder, so a reader who finds `running`
and no lock knows that the process is gone.
"""

from __future__ import annotations

import fcntl
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from sslengine.atomic import lock_file, open_no_link
from sslengine.checkpoint.manifest import is_checkpoint
from sslengine.config.yaml_text import load_run
from sslengine.errors import ConfigError, DataError, NonFiniteLossError
from sslengine.monitor import history
from sslengine.monitor.collapse import NOT_FINITE, Sign, ends_of_phases, find_signs

TRAINED, UNTRAINED, PIXELS = "trained", "untrained", "raw pixels"
LOCK = ".lock"
STATUS, STARTS = "status.json", "starts.jsonl"
RUNNING, COMPLETE, STOPPED, FAILED = "running", "complete", "stopped", "failed"
REPORT, JUDGEMENTS = "evaluation.json", "judgements"


@dataclass(frozen=True)
class Status:
    status: str
    step: int = 0
    steps: int = 0
    # What ended the run: the first line of the error, or the signal.
    cause: str = ""
    # The error's class; empty: none.
    error: str = ""
    ended: str = ""
    memory: Mapping[str, float] | None = None  # peaks in GB, of rank 0

    @property
    def is_not_finite(self) -> bool:
        return self.error == NonFiniteLossError.__name__


COMPLETE_RUN = Status(COMPLETE)


@dataclass(frozen=True)
class FeatureScore:
    """A score of one kind of features on the test images, in percent."""

    features: str  # trained, untrained, raw pixels, reference
    layer: str
    metric: str  # knn_20, linear
    value: float
    # The 95 % interval over test images; None: unknown.
    interval: tuple[float, float] | None = None
    # The trained features' score minus this one on the same images, and its 95 % interval.
    gain: tuple[float, float, float] | None = None

    @property
    def half(self) -> float:
        """Return the longer half of the interval."""
        low, high = self.interval or (self.value, self.value)
        return max(self.value - low, high - self.value)


@dataclass(frozen=True)
class Facts:
    """What the rules read: all of it is in the run's folder."""

    folder: Path
    config: Mapping[str, Any] = field(default_factory=dict)  # `config` of config.yaml
    status: Status = COMPLETE_RUN
    rows: Sequence[Mapping[str, Any]] = ()  # of metrics.jsonl
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    starts: Sequence[Mapping[str, Any]] = ()

    @property
    def run(self) -> str:
        return shlex.quote(str(self.folder))

    @property
    def command(self) -> str:
        """Return that of the newest start, as it was typed; empty if the run kept none."""
        return str(self.starts[-1].get("command", "")) if self.starts else ""

    @cached_property
    def losses(self) -> list[float]:
        return [row["loss"] for row in self.rows
                if row["kind"] == "step" and isinstance(row.get("loss"), float)]  # fmt: skip

    @cached_property
    def ends(self) -> list[dict[str, Any]]:
        return ends_of_phases(self.rows)

    @cached_property
    def found(self) -> list[Sign]:
        """Return what the collapse rules find, but a loss that is not finite and ended the run."""
        if not self.config.get("LOSS", {}).get("name"):
            return []
        found = find_signs(self.ends, self.config)
        return [each for each in found if each.what != NOT_FINITE or not self.status.is_not_finite]

    @property
    def since(self) -> int:
        """Return the first epoch, from 1, after which the first finding was there until now."""
        what, first = self.found[0].what, len(self.ends)
        while any(each.what == what for each in find_signs(self.ends[: first - 1], self.config)):
            first -= 1
        return first

    @property
    def method(self) -> str:
        name = self.config.get("LOSS", {}).get("name")
        return str(name or self.config.get("MODEL", {}).get("BASE_MODEL_NAME", ""))

    @property
    def network(self) -> str:
        trunk = self.config.get("MODEL", {}).get("TRUNK", {})
        name = str(trunk.get("NAME", ""))
        return str(trunk.get(name.upper(), {}).get("model") or name)

    @property
    def seconds(self) -> float:
        """Add up the time of all starts; 0 if the records do not say when they were."""
        begun = [datetime.fromisoformat(each["time"]).timestamp() for each in self.starts]
        times = [row["time"] for row in self.rows if "time" in row]
        ends = [max((each for each in times if each < later), default=start)
                for start, later in zip(begun, [*begun[1:], float("inf")])]  # fmt: skip
        return sum(max(0.0, end - start) for start, end in zip(begun, ends))

    @property
    def answers(self) -> Path:
        """Return the file with the answer to each test image of the newest judgement."""
        name = name_of_images(self.evaluation.get("images", {}))
        return self.folder / JUDGEMENTS / f"{name}.npz"

    def scores(self, metric: str) -> dict[str, FeatureScore]:
        """Map each kind of features to its score, of the last layer."""
        found = scores_of(self.evaluation)
        return {each.features: each for each in found if each.metric == metric}

    @cached_property
    def _trained(self) -> list[Mapping[str, Any]]:
        """List the report's rows of trained features: one for each layer."""
        return [each for each in self.evaluation.get("scores", ()) if each["features"] == TRAINED]

    @property
    def metrics(self) -> list[str]:
        """List those of the trained features, kNN first."""
        return [*values_of(self._trained[-1])] if self._trained else []

    @property
    def about(self) -> Mapping[str, Any]:
        """Return how the trained features were scored; {} if they were not."""
        return dict(self._trained[0].get("about", {})) if self._trained else {}

    def name(self, metric: str) -> str:
        kind = "" if self.evaluation.get("metric", "accuracy") == "accuracy" else " mAP"
        return f"{'linear probe' if metric == 'linear' else 'kNN'}{kind}"

    @property
    def tested(self) -> int:
        """Count the images that were tested."""
        images = [each.get("about", {}).get("images", {})
                  for each in self.evaluation.get("scores", ())]  # fmt: skip
        return int(images[0].get("test", images[0].get("train", 0))) if images else 0


def scores_of(report: Mapping[str, Any], features: str = "") -> list[FeatureScore]:
    """Return the scores of one kind of features, or of all; of several layers all of them."""
    found = []
    for each in report.get("scores", ()):
        if features and each["features"] != features:
            continue
        for metric, value in values_of(each).items():
            interval, gain = (each.get(key, {}).get(metric) for key in ("intervals", "gains"))
            found.append(FeatureScore(each["features"], each["layer"], metric, value,
                               tuple(interval) if interval else None,
                               tuple(gain) if gain else None))  # fmt: skip
    return found


def most_neighbours(metrics: Iterable[str]) -> str:
    """Return the kNN metric of most neighbours, by which runs are judged; empty: there is none."""
    near = [each for each in metrics if each.startswith("knn_")]
    return max(near, key=lambda each: int(each.removeprefix("knn_")), default="")


def values_of(score: Mapping[str, Any]) -> dict[str, float]:
    """Map each metric of a row of the report to its value; that of most neighbours comes first."""
    values = {f"knn_{k}": value for k, value in score.get("knn", {}).items()}
    if first := most_neighbours(values):
        values = {first: values[first], **values}
    linear = score.get("linear")
    return values if linear is None else {**values, "linear": linear}


def is_run(folder: Path) -> bool:
    """Is it the folder of a run, or of a network that was judged?"""
    return (folder / "config.yaml").is_file() or (folder / REPORT).is_file()


def read_facts(folder: Path) -> Facts:
    if not is_run(folder):
        raise ConfigError(f"{folder} has no config.yaml: it is not the folder of a run.")
    config = config_in(folder / "config.yaml")
    rows = history.read(folder, None) if (folder / "metrics.jsonl").exists() else []
    made = max((row["iteration"] for row in rows), default=0)
    starts = history.read_lines(folder / STARTS)
    # Without a config it was not trained here.
    status = (
        read_status(folder, made, _count_planned(config, rows, made)) if config else COMPLETE_RUN
    )
    return Facts(folder, config, status, rows, read_report(folder / REPORT), tuple(starts))


def read_judgements(facts: Facts) -> list[Mapping[str, Any]]:
    """Return the reports on all sets of images, the newest first."""
    files = sorted((facts.folder / JUDGEMENTS).glob("*.json"),
                   key=lambda each: each.stat().st_mtime, reverse=True)  # fmt: skip
    found = [read_report(each) for each in files]
    newest = facts.evaluation
    others = [each for each in found if each.get("images") != newest.get("images")]
    return [newest, *others] if newest else others


def name_of_images(images: Mapping[str, Any]) -> str:
    """Name a set of images by what identifies those of each split."""
    content = json.dumps(images, sort_keys=True, default=str)
    return sha256(content.encode()).hexdigest()[:12]


def read_report(file: Path) -> Mapping[str, Any]:
    """Return a report of `judge`; {} if there is none."""
    if not file.is_file():
        return {}
    with suppress(ValueError):
        found = json.loads(file.read_bytes())
        scores = found.get("scores", []) if isinstance(found, dict) else None
        if isinstance(scores, list) and all(map(_is_score, scores)):
            return found  # type: ignore[no-any-return]
    raise DataError(f"{file} is no report: remove it, and judge the run again: `sslengine judge`.")


def config_in(file: Path) -> Mapping[str, Any]:
    """Return `config` of a stored config; {} if there is no such file."""
    if not file.is_file():
        return {}
    found: Mapping[str, Any] = load_run(file.read_bytes(), str(file))["config"]
    return found


def checkpoints_in(folder: Path) -> list[str]:
    """Return files, also those that only point to one, and the folders of sharded runs."""
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    return [path.name for path in paths if path.suffix == ".torch" or is_checkpoint(path)]


def read_status(folder: Path, step: int = 0, steps: int = 0) -> Status:
    """Return the state of the run. step, steps: those of a run whose version wrote no status."""
    found: Any = {}
    with suppress(OSError, ValueError):
        found = json.loads((folder / STATUS).read_bytes())
    known = {key: found[key] for key in Status.__dataclass_fields__ if key in found}
    if not isinstance(known.get("status"), str):
        status = RUNNING if _is_held(folder) else COMPLETE if step >= steps > 0 else STOPPED
        return Status(status, step, steps)
    if known["status"] == RUNNING and not _is_held(folder):
        known |= {"status": STOPPED, "cause": "its process is gone: killed?"}
    if known["status"] in (RUNNING, STOPPED):
        known["step"] = max(step, known.get("step", 0))
    return Status(**known)


def _is_held(folder: Path) -> bool:
    """Look whether a run is in the folder; False where the file system has no locks."""
    with suppress(OSError), open(folder / LOCK, "rb", opener=open_no_link) as file:
        return not lock_file(file.fileno(), fcntl.LOCK_SH)
    return False


def _count_planned(config: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], made: int) -> int:
    """Return the steps of a run that kept no status; 0: unknown."""
    phases = sum(row["kind"] == "phase" and row["split"] == "train" for row in rows)
    planned = config.get("OPTIMIZER", {})
    epochs, steps = (planned.get(key) or 0 for key in ("num_epochs", "num_iterations"))
    return int(steps or (made * epochs / phases if phases else 0))


def _is_score(found: Any) -> bool:
    match found:
        case {"features": str(), "layer": str(), "knn": dict() as knn}:
            linear = found.get("linear")
            numbers = [*knn.values(), *([] if linear is None else [linear])]
            numeric = all(isinstance(each, (int, float)) for each in numbers)
            return numeric and all(map(str.isdecimal, knn))
    return False
