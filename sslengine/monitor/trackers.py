"""Send records to trackers of other packages: wandb, trackio and swanlab by shared calls; MLflow.

A tracker is for watching: its first error is reported, and the run continues. A run that
resumes continues under the id that is kept in `trackers/<package>.json` of its folder. Steps that
it makes again after a kill are sent again, with the same values; metrics.jsonl is the record.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import secrets
import sys
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sslengine.atomic import write_whole
from sslengine.config.ranges import choice
from sslengine.dotted import leaves
from sslengine.errors import Preempted
from sslengine.monitor.writers import Record, RunPlace, Writer, build_writers
from sslengine.registry import register_writer
from sslengine.trust import expect_trust, is_closed

FOLDER = "trackers"


def find_absent(package: str, key: str) -> Iterator[str]:
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
        yield from find_absent(self.module, "module")


class TrackerWriter(Writer):
    """Do what all trackers have in common; a subclass makes the package's calls."""

    _took = True  # an error at the first record is no reason to end a run either

    def __init__(self, run: RunPlace, options: TrackerOptions | MlflowOptions) -> None:
        self.package = getattr(options, "module", "mlflow")
        sent = f"metrics and the config may be sent elsewhere by {self.package}"
        expect_trust(sent, "config.HOOKS.WRITERS", self.package)
        self.options: Any = options
        self.place, self.folder = run, run.folder / FOLDER
        self.name = options.run_name or run.folder.resolve().name
        self._run: Any = None
        self.is_open = self.attempt(self._start)

    def _start(self) -> None:
        file = self.folder / f"{self.package}.json"
        known = json.loads(file.read_text()) if file.is_file() else None
        module = importlib.import_module(self.package)
        self.id = known["id"] if known else self.new_id(module)
        # Each start gives it, also the one that adds scores: trackio keeps that of the last.
        self.config = dict(self.place.config or (known or {}).get("config", {}))
        kept = {"id": self.id, "options": asdict(self.options), "config": self.config}
        write_whole(file, json.dumps(kept, indent=2).encode(), private=True)
        self.start(module, is_new=known is None)

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
    def finish(self, error: BaseException | None) -> None:
        """End the run. error: of one that failed."""

    def write(self, record: Record) -> None:
        if self.is_open:
            self.send(record)

    def close(self) -> None:
        error = sys.exc_info()[1]  # of a run that fails: it is closed while that is handled
        if isinstance(error, (Preempted, KeyboardInterrupt)):
            error = None
        if self.is_open:
            self.attempt(lambda: self.finish(error))
        self.is_open = False


@register_writer("tracker", options=TrackerOptions)
class SharedCallsTracker(TrackerWriter):
    """Make the calls of wandb, trackio and swanlab: init, Image, Histogram, log and finish."""

    def start(self, module: Any, is_new: bool) -> None:
        self._module, name, options = module, self.name, self.options
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

    def send_scores(self, scores: Mapping[str, float]) -> None:
        if hasattr(self._run, "summary"):  # wandb: values of the run, not of a step
            self._run.summary.update(scores)
        else:
            self._run.log(dict(scores))

    def finish(self, error: BaseException | None) -> None:
        failed: dict[str, dict[str, Any]] = {  # trackio has no such state
            "wandb": {"exit_code": 1},
            "swanlab": {"state": "crashed", "error": repr(error)},
        }
        self._run.finish(**({} if error is None else failed.get(self.package, {})))


@dataclass
class MlflowOptions:
    # A server's address, or sqlite:///FILE; by default MLflow's own: MLFLOW_TRACKING_URI.
    tracking_uri: str = ""
    # The experiment in which the run is shown.
    experiment: str = "sslengine"
    # What the run is called there; by default as its folder.
    run_name: str = ""

    def check(self) -> Iterator[str]:
        yield from find_absent("mlflow", "name")


@register_writer("mlflow", options=MlflowOptions)
class MlflowTracker(TrackerWriter):
    """Call MLflow's client, which has written a record when the call returns."""

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
            key = _clean(f"{record.prefix}/{name}")
            self._run.log_image(self.id, image, key=key, step=record.iteration)

    def _send_numbers(self, values: Mapping[str, float], step: int) -> None:
        metric, now = self._module.entities.Metric, int(1000 * time.time())
        named = [metric(_clean(name), float(value), now, step) for name, value in values.items()]
        self._run.log_batch(self.id, metrics=named)

    def send_scores(self, scores: Mapping[str, float]) -> None:
        self._send_numbers(scores, 0)

    def finish(self, error: BaseException | None) -> None:
        self._run.set_terminated(self.id, "FAILED" if error else "FINISHED")


def _clean(name: str) -> str:
    """Replace the characters that MLflow does not take."""
    return re.sub(r"[^\w.\- /]", "_", name)


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
            if writer.is_open:
                named = {f"judge/{name}": each for name, each in leaves(scores, "/")}
                writer.attempt(partial(writer.send_scores, named))
            writer.close()
    return notes
