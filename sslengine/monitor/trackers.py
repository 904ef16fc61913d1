"""Send records to trackers of other packages: wandb, trackio, swanlab by shared calls, and MLflow.

A tracker is for watching: its first error is reported, and the run continues. A run that
resumes continues under the id that is kept in `trackers/<package>.json` of its folder. A tracker
cannot take a record back: the records it holds are noted, and not sent again when a resumed
run makes its steps again. What a kill took from the package before it was written is read from
metrics.jsonl.
"""

from __future__ import annotations

import importlib
import json
import logging
import math
import os
import re
import secrets
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sslengine.atomic import write_whole
from sslengine.config.ranges import choice
from sslengine.dotted import leaves
from sslengine.errors import Preempted
from sslengine.monitor.build import METRICS, RunPlace, build_writers
from sslengine.monitor.history import read_nested
from sslengine.monitor.writers import Record, Writer
from sslengine.registry import register_writer
from sslengine.trust import expect_trust, is_closed

log = logging.getLogger("sslengine")

FOLDER = "trackers"


def _absent(package: str, key: str) -> Iterator[str]:
    if find_spec(package) is None:
        yield f"{key}: {package} is not installed. pip install 'sslengine[{package}]'"


@dataclass
class TrackerOptions:
    # The package: wandb, trackio or swanlab.
    module: str = choice("wandb", "trackio", "swanlab")
    # The project in which the run is shown.
    project: str = "sslengine"
    # What the run is called there; by default as its folder.
    run_name: str = ""
    # Send nothing: wandb and swanlab keep the records in the run's folder, for their `sync`.
    offline: bool = False
    # Further arguments of the package's `init`, such as entity, tags, group or space_id.
    init: dict[str, Any] = field(default_factory=dict)

    def check(self) -> Iterator[str]:
        yield from _absent(self.module, "module")


@dataclass
class MlflowOptions:
    # A server's address, or sqlite:///FILE; by default MLflow's own: MLFLOW_TRACKING_URI.
    tracking_uri: str = ""
    # The experiment in which the run is shown.
    experiment: str = "sslengine"
    # What the run is called there; by default as its folder.
    run_name: str = ""

    def check(self) -> Iterator[str]:
        yield from _absent("mlflow", "name")


class TrackerWriter(Writer):
    """Do what all of them have in common; a subclass makes the package's calls."""

    # Seconds after which a package certainly has on the disk what it got before the last step.
    delay = 0.0

    def __init__(self, run: RunPlace, package: str, options: Any) -> None:
        where = "config.HOOKS.WRITERS"
        expect_trust(f"metrics and the config may be sent elsewhere by {package}", where, package)
        self.package, self.options, self.place = package, options, run
        self.folder = run.folder / FOLDER
        self.name = options.run_name or run.folder.resolve().name
        self._note_file = self.folder / f"{package}.sent"
        self.is_open = self._failed = False
        # The last iteration that was sent, by the prefix of its names; and what is noted next.
        self._sent: dict[str, int] = {}
        self._next_note, self._due = self._sent, 0.0
        self.attempt(self._start)

    def _start(self) -> None:
        module = importlib.import_module(self.package)
        file = self.folder / f"{self.package}.json"
        known = json.loads(file.read_text()) if file.is_file() else None
        self.id = known["id"] if known else self.new_id(module)
        # Each start gives it, also the one that adds scores: trackio keeps that of the last.
        self.config = dict(self.place.config or (known or {}).get("config", {}))
        kept = {"id": self.id, "options": asdict(self.options), "config": self.config}
        write_whole(file, json.dumps(kept, indent=2).encode(), private=True)
        last = self.start(module, is_new=known is None)
        with suppress(OSError, ValueError):  # killed while it was written
            noted = json.loads(self._note_file.read_text())
            self._sent = self._next_note = {each: min(noted[each], last) for each in noted}
        self.is_open = True
        if self.place.trains and self.place.iteration:
            self._send_missing()

    def _send_missing(self) -> None:
        """Send what is not noted, up to the checkpoint: later steps are made again."""
        file = self.place.folder / METRICS
        for line in read_nested(file) if file.is_file() else ():
            if line["iteration"] <= self.place.iteration:
                names = ("time", "kind", "iteration", "epoch", "split")
                _, kind, iteration, epoch, split = (line.pop(each, 0) for each in names)
                self.write(Record(kind, iteration, epoch, split, line))

    def new_id(self, module: Any) -> str:
        return secrets.token_hex(8)

    @abstractmethod
    def start(self, module: Any, is_new: bool) -> float:
        """Begin the run `self.id`, or continue it. Return the last step it has; inf: as noted."""

    @abstractmethod
    def send(self, record: Record) -> None: ...

    @abstractmethod
    def send_scores(self, scores: Mapping[str, float]) -> None: ...

    @abstractmethod
    def finish(self, error: BaseException | None) -> None:
        """End the run. error: of one that failed."""

    def write(self, record: Record) -> None:
        is_there = record.iteration <= self._sent.get(record.prefix, -1) and self.place.trains
        if not self.is_open or is_there or not self.attempt(lambda: self.send(record)):
            return
        before, self._sent = self._sent, {**self._sent, record.prefix: record.iteration}
        if not self.delay:
            self._note(self._sent)
        elif record.iteration > max(before.values(), default=-1) and time.monotonic() > self._due:
            self._note(self._next_note)
            self._next_note, self._due = before, time.monotonic() + self.delay

    def _note(self, sent: dict[str, int]) -> None:
        with suppress(OSError):
            self._note_file.write_text(json.dumps(sent))

    def add_scores(self, scores: Mapping[str, float]) -> None:
        if self.is_open:
            self.attempt(lambda: self.send_scores(scores))

    def attempt(self, call: Callable[[], object]) -> bool:
        """Call it, and report the first of several failures in a row."""
        try:
            call()
        except Exception as error:
            if not self._failed:
                log.error(
                    "%s: %s: %s. Training continues, and the other writers have the record.",
                    self.package, type(error).__name__, error,
                )  # fmt: skip
            self._failed = True
            return False
        self._failed = False
        return True

    def close(self) -> None:
        error = sys.exc_info()[1]  # of a run that fails: it is closed while that is handled
        if isinstance(error, (Preempted, KeyboardInterrupt)):
            error = None
        if self.is_open and self.attempt(lambda: self.finish(error)):
            self._note(self._sent)
        self.is_open = False


class SharedCallsTracker(TrackerWriter):
    """Make the calls of wandb, trackio and swanlab: init, Image, Histogram, log and finish."""

    def start(self, module: Any, is_new: bool) -> float:
        self._module, name, options = module, self.name, self.options
        # wandb keeps a step until the next, and writes its file every 15 seconds. swanlab may send
        # much later, and refuses steps that its server has.
        self.delay = {"wandb": 16.0, "trackio": 0.0, "swanlab": math.inf}[self.package]
        arguments: dict[str, Any] = {
            "wandb": {"name": name, "id": self.id, "dir": str(self.folder)},
            "swanlab": {"name": name, "id": self.id, "log_dir": str(self.folder / "swanlog")},
            "trackio": {"name": f"{name}-{self.id}"},  # a name is an id there
        }[self.package]
        if options.offline and self.package == "trackio":
            for each in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
                os.environ.pop(each, None)
        elif options.offline:
            arguments["mode"] = "offline"
        arguments |= {"project": options.project, "config": self.config, "resume": "allow"}
        self._run = module.init(**{**arguments, **options.init})
        # trackio writes twice a second.
        return getattr(self._run, "_next_step", 0) - 1 if self.package == "trackio" else math.inf

    def send(self, record: Record) -> None:
        values: dict[str, Any] = {**record.numbers}
        for name, image in record.images.items():
            values[f"{record.prefix}/{name}"] = self._module.Image(image)
        if hasattr(self._module, "Histogram"):
            for name, each in record.histograms.items():
                both = each.counts, each.edges
                values[f"{record.prefix}/{name}"] = self._module.Histogram(np_histogram=both)
        # What is tested again in a later command comes after all that is there.
        self._run.log(values, step=record.iteration if self.place.trains else None)

    def send_scores(self, scores: Mapping[str, float]) -> None:
        if hasattr(self._run, "summary"):  # wandb: values of the run, not of a step
            self._run.summary.update(scores)
        else:
            self._run.log(dict(scores))

    def finish(self, error: BaseException | None) -> None:
        if error is None or self.package == "trackio":  # which has no such state
            self._run.finish()
        elif self.package == "wandb":
            self._run.finish(exit_code=1)
        else:
            self._run.finish(state="crashed", error=repr(error))


class MlflowTracker(TrackerWriter):
    """Call MLflow's client, which has written a record when the call returns."""

    def new_id(self, module: Any) -> str:
        client, options = self._client(module), self.options
        found = client.get_experiment_by_name(options.experiment)
        where = found.experiment_id if found else client.create_experiment(options.experiment)
        return str(client.create_run(where, run_name=self.name).info.run_id)

    def _client(self, module: Any) -> Any:
        return module.MlflowClient(self.options.tracking_uri or None)

    def start(self, module: Any, is_new: bool) -> float:
        self._module, self._run = module, self._client(module)
        self._run.update_run(self.id, status="RUNNING")
        if is_new:
            self._run.log_dict(self.id, self.config, "config.yaml")
        return math.inf

    def send(self, record: Record) -> None:
        self._send_numbers(record.numbers, record.iteration)
        for name, image in record.images.items():
            key = _key(f"{record.prefix}/{name}")
            self._run.log_image(self.id, image, key=key, step=record.iteration)

    def _send_numbers(self, values: Mapping[str, float], step: int) -> None:
        metric, now = self._module.entities.Metric, int(1000 * time.time())
        named = [metric(_key(name), float(value), now, step) for name, value in values.items()]
        self._run.log_batch(self.id, metrics=named)

    def send_scores(self, scores: Mapping[str, float]) -> None:
        self._send_numbers(scores, 0)

    def finish(self, error: BaseException | None) -> None:
        self._run.set_terminated(self.id, "FAILED" if error else "FINISHED")


def _key(name: str) -> str:
    """Replace the characters that MLflow does not take."""
    return re.sub(r"[^\w.\- /]", "_", name)


@register_writer("tracker", options=TrackerOptions)
def tracker(run: RunPlace, options: TrackerOptions) -> Writer:
    return SharedCallsTracker(run, options.module, options)


@register_writer("mlflow", options=MlflowOptions)
def mlflow(run: RunPlace, options: MlflowOptions) -> Writer:
    return MlflowTracker(run, "mlflow", options)


def add_scores(folder: Path, scores: Mapping[str, Any]) -> list[str]:
    """Add the scores of the run in this folder to its trackers, and return notes on those left out.

    Only where the folder is trusted: its files say where the scores are sent.
    """
    notes = []
    for file in sorted((folder / FOLDER).glob("*.json")):
        if is_closed():
            notes.append(f"the scores are not sent to {file.stem}: --trust-config allows it")
            continue
        options = json.loads(file.read_text())["options"]
        name = "mlflow" if file.stem == "mlflow" else "tracker"
        for writer in build_writers([{"name": name, **options}], RunPlace(folder, 0)):
            assert isinstance(writer, TrackerWriter)
            writer.add_scores({f"judge/{name}": each for name, each in leaves(scores, "/")})
            writer.close()
    return notes
