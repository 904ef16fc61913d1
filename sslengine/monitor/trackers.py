"""Trackers of other packages: wandb, trackio and swanlab by the calls that they share, and MLflow.

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
import os
import re
import secrets
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from sslengine.atomic import make_folder, write_whole
from sslengine.config.sections import one_of
from sslengine.dotted import leaves
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
    module: str = "wandb"
    # The project in which the run is shown.
    project: str = "sslengine"
    # What the run is called there; by default as its folder.
    run_name: str = ""
    # Send nothing: wandb and swanlab keep the records in the run's folder, for their `sync`.
    offline: bool = False
    # Further arguments of the package's `init`, such as entity, tags, group or space_id.
    init: dict[str, Any] = field(default_factory=dict)

    def check(self) -> Iterator[str]:
        yield from one_of(self, "module", "wandb", "trackio", "swanlab")
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
    """What all of them have in common; a subclass makes the package's calls."""

    # Seconds after which the package has written what it was sent; wandb: not the step that may
    # get more values.
    settled_after, keeps_step_open = 0.0, False

    def __init__(self, run: RunPlace, package: str, options: Any) -> None:
        where = "config.HOOKS.WRITERS"
        expect_trust(f"metrics and the config may be sent elsewhere by {package}", where, package)
        self.package, self.options, self.place = package, options, run
        self.folder = run.folder / FOLDER
        self.name = options.run_name or run.folder.resolve().name
        self._failed = False
        # The last iteration by the prefix of its names; what is noted once it has settled.
        self._sent: dict[str, int] = {}
        self._settling = self._sent
        self._is_waiting = False
        self._noting = threading.Lock()
        self._note_file = self.folder / f"{package}.sent"
        self.is_open = self.attempt(self._start)
        if self.is_open and run.trains and run.iteration:
            self.attempt(self._send_missing)

    def _start(self) -> None:
        module = importlib.import_module(self.package)
        make_folder(self.folder)
        file = self.folder / f"{self.package}.json"
        known = json.loads(file.read_text()) if file.is_file() else None
        self.id = known["id"] if known else self.new_id(module)
        # Each start gives it, also the one that adds scores: trackio keeps that of the last.
        self.config = dict(self.place.config or (known or {}).get("config", {}))
        kept = {"id": self.id, "options": asdict(self.options), "config": self.config}
        write_whole(file, json.dumps(kept, indent=2).encode(), private=True)
        self.start(module, is_new=known is None)
        with suppress(OSError, ValueError):  # killed while it was written
            self._sent = self._settling = json.loads(self._note_file.read_text())

    def new_id(self, module: Any) -> str:
        return secrets.token_hex(8)

    @abstractmethod
    def start(self, module: Any, is_new: bool) -> None:
        """Begin the run `self.id`, or continue it."""

    @abstractmethod
    def send(self, record: Record) -> None: ...

    @abstractmethod
    def send_scores(self, scores: Mapping[str, float]) -> None: ...

    @abstractmethod
    def finish(self) -> None: ...

    def _send_missing(self) -> None:
        """Up to the checkpoint: later steps are made again. `write` leaves out what is noted."""
        file = self.place.folder / METRICS
        for line in read_nested(file) if file.is_file() else ():
            if line["iteration"] <= self.place.iteration:
                names = ("kind", "iteration", "epoch", "split")
                kind, iteration, epoch, split = (line.pop(each, 0) for each in names)
                self.write(Record(kind, iteration, epoch, split, line))

    def write(self, record: Record) -> None:
        is_there = record.iteration <= self._sent.get(record.prefix, -1) and self.place.trains
        if self.is_open and not is_there and self.attempt(lambda: self.send(record)):
            before, self._sent = self._sent, {**self._sent, record.prefix: record.iteration}
            if not self.keeps_step_open:
                self._settling = self._sent
            elif record.iteration > max(before.values(), default=-1):
                self._settling = before
            if not self.settled_after:
                self._note(self._settling)
            elif not self._is_waiting:
                self._note_later()

    def _note_later(self) -> None:
        self._is_waiting = True
        timer = threading.Timer(self.settled_after, self._note, (self._settling,))
        timer.daemon = True
        timer.start()

    def _note(self, sent: dict[str, int]) -> None:
        with self._noting:
            if not self.is_open:
                return
            if self.is_settled():
                self._write_note(sent)
        self._is_waiting = False
        if self._settling is not sent:
            self._note_later()

    def _write_note(self, sent: dict[str, int]) -> None:
        with suppress(OSError):
            self._note_file.write_text(json.dumps(sent))

    def is_settled(self) -> bool:
        """Return whether what was sent `settled_after` seconds ago is kept if the run is killed."""
        return True

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
        if not self.is_open:
            return
        with self._noting:
            self.is_open = False
        if self.attempt(self.finish):
            self._write_note(self._sent)


class SharedCallsTracker(TrackerWriter):
    """wandb, trackio and swanlab: init, Image, Histogram, and a run's log and finish."""

    # wandb writes its file every 15 seconds, the others twice a second.
    _SETTLED_AFTER: ClassVar[dict[str, float]] = {"wandb": 16.0, "trackio": 1.0, "swanlab": 1.0}

    def start(self, module: Any, is_new: bool) -> None:
        self._module, name, options = module, self.name, self.options
        self.settled_after = self._SETTLED_AFTER[self.package]
        self.keeps_step_open = self.package == "wandb"
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

    def is_settled(self) -> bool:
        """swanlab writes its files in blocks of 8 kB, and a kill would take the last. Its server,
        which gets records when there is time, ignores steps that it has."""
        if self.package != "swanlab":
            return True
        with suppress(AttributeError):
            self._run._ctx.core._store.ensure_flushed()
            return bool(self._run.mode != "online")
        return False

    def send_scores(self, scores: Mapping[str, float]) -> None:
        if hasattr(self._run, "summary"):  # wandb: values of the run, not of a step
            self._run.summary.update(scores)
        else:
            self._run.log(dict(scores))

    def finish(self) -> None:
        self._run.finish()


class MlflowTracker(TrackerWriter):
    """MLflow by its client, which has written a record when the call returns."""

    def new_id(self, module: Any) -> str:
        client, options = self._client(module), self.options
        found = client.get_experiment_by_name(options.experiment)
        where = found.experiment_id if found else client.create_experiment(options.experiment)
        return str(client.create_run(where, run_name=self.name).info.run_id)

    def _client(self, module: Any) -> Any:
        return module.MlflowClient(self.options.tracking_uri or None)

    def start(self, module: Any, is_new: bool) -> None:
        self._module, self._run = module, self._client(module)
        self._run.update_run(self.id, status="RUNNING")
        if is_new:
            self._run.log_dict(self.id, self.config, "config.yaml")

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

    def finish(self) -> None:
        self._run.set_terminated(self.id)


def _key(name: str) -> str:
    """Return the name with the characters that MLflow takes."""
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
