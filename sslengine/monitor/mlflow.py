"""Send records to MLflow: `HOOKS.WRITERS: [{name: mlflow, experiment: birds}]`."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sslengine.monitor.trackers import TrackerWriter, find_absent
from sslengine.monitor.writers import Record, RunPlace
from sslengine.registry import register_writer


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

    def __init__(self, run: RunPlace, options: MlflowOptions) -> None:
        super().__init__(run, options, "mlflow", options.run_name)

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
