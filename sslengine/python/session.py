"""The result of `fit`: the trained model, its history, predictions and losses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import nn

from sslengine.command import judge
from sslengine.data.given import make_feed
from sslengine.engine.passes import trunk_of
from sslengine.errors import ConfigError, nearest
from sslengine.hooks.events import Hook, Task
from sslengine.methods.foreign import FunctionLoss
from sslengine.models.trunks.base import find_trunk
from sslengine.monitor.store import MAIN
from sslengine.precision import Precision
from sslengine.python.passes import Feed, gather_batches, mean_losses, predict_batches
from sslengine.python.train import TrainedRun


@dataclass
class History:
    """The history of a run in memory, by step and by phase."""

    # One record per train step: iteration (from 1), epoch, loss, its parts, lr.
    steps: list[dict[str, Any]] = field(default_factory=list)
    # One record per train or test phase: iteration, epoch, split, loss, meters.
    epochs: list[dict[str, Any]] = field(default_factory=list)

    def losses(self) -> list[float]:
        return [record["loss"] for record in self.steps]


class KeepHistory(Hook):
    """Fill a History. It reads losses when the store does, so it adds no synchronisation."""

    def __init__(self, history: History) -> None:
        self.history = history
        self._rates: dict[int, dict[str, float]] = {}

    def on_phase_start(self, task: Task) -> None:
        task.storage.take_history()

    def on_update(self, task: Task) -> None:
        self._rates[task.iteration] = task.optimizer.learning_rates()

    def on_phase_end(self, task: Task) -> None:
        self._take_steps(task)
        if not task.phase.complete:
            return
        split = "train" if task.train else "test"
        record = {"iteration": task.iteration, "epoch": task.phase.epoch, "split": split}
        self.history.epochs.append({**record, **task.phase_results})

    def on_exception(self, task: Task) -> None:
        self._take_steps(task)

    def _take_steps(self, task: Task) -> None:
        entries = task.storage.take_history()
        for entry in entries if task.train else ():
            parts = {f"loss.{name}": each for name, each in entry.parts.items() if name != MAIN}
            self.history.steps.append(
                {
                    "iteration": entry.iteration + 1,
                    "epoch": task.phase.epoch,
                    "loss": entry.parts[MAIN],
                    **parts,
                    **self._rates.pop(entry.iteration, {}),
                }
            )


def as_module(loss: Any) -> nn.Module:
    """Return a loss as a module; of a model that gives its losses an empty one."""
    if isinstance(loss, nn.Module):
        return loss
    return FunctionLoss(loss) if loss is not None else nn.Module()


class Session:
    """A run of `fit`: its model, loss and history, and what can be computed of its datasets."""

    def __init__(
        self, asked: Any, history: History, iteration: int, complete: bool, device: torch.device,
        precision: Precision,
    ) -> None:  # fmt: skip
        """asked: the arguments of `fit`. iteration: train steps, also those before a resume."""
        self.model, self.loss, self.history = asked.model, asked.loss, history
        self.iteration, self.complete = iteration, complete
        named = {"train": asked.data, "validation": asked.validation, "test": asked.test}
        self._sets = {} if asked.of_images else named
        self._feeding = {**asked.feeding, "seed": asked.seed, "device": device}
        self._precision, self._folder = precision, asked.out

    def __repr__(self) -> str:
        losses = (f"{split} loss {record['loss']:.4g}" for split, record in self.results.items())
        state = "complete" if self.complete else "not complete"
        return f"Session({', '.join([f'{self.iteration} steps', state, *losses])})"

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        """The metrics of the last train phase and of the last test phase."""
        return {record["split"]: record for record in self.history.epochs}

    @property
    def run(self) -> TrainedRun:
        """The run's folder, to judge, embed and export the trunk as of any run."""
        if self._folder is None:
            raise ConfigError("the run has no folder. Give fit one: out=...")
        return TrainedRun(self._folder)

    def predict(
        self,
        name: Any = "test",
        *,
        collate: Callable[[list[Any]], Any] | None = None,
        transform: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Call `sslengine.predict` on "train", "validation" or "test", or on other data.

        Of a model that gives its losses: with the features of its trunk.
        """
        model = self.model
        if self.loss is None and find_trunk(model) is not None:
            model = trunk_of(model)
        with self._feed(name) as feed:
            return predict_batches(model, feed, self._precision, collate, transform)

    def evaluate_loss(self, name: Any = "test") -> dict[str, float]:
        """Return the mean loss per sample over a dataset, with its parts, as in a test phase."""
        with self._feed(name) as feed:
            return mean_losses(self.model, self.loss, feed, self._precision)

    def judge(self, train: str = "train", val: str = "validation") -> dict[str, Any]:
        """Print and return how well the model's outputs, a row for each sample, tell the targets by
        nearest neighbours and a linear probe, as `sslengine judge --features`."""
        with TemporaryDirectory() as folder:
            files = [Path(folder, f"{split}.npz") for split in ("train", "test")]
            for name, file in zip((train, val), files, strict=True):
                rows = self.predict(name).flatten(1).float().numpy()
                np.savez(file, features=rows, labels=self._targets(name))
            found = Path(folder, "scores.json")
            judge.main(["--features", *map(str, files), "--out", str(found)])
            scores: dict[str, Any] = json.loads(found.read_text())
            return scores

    def _targets(self, name: str) -> Any:
        with self._feed(name) as feed:
            mine = [batch["label"][0].cpu() for batch in feed.batches()]
        return torch.cat(gather_batches(mine)).numpy()

    def report(self) -> Path:
        """Write the page of the run's folder, as `sslengine report`, and return its file."""
        return self.run.report()

    @contextmanager
    def _feed(self, name: Any) -> Iterator[Feed]:
        """Read a dataset of the run by its name, or another one, each sample once and in order."""
        data = self._sets.get(name) if isinstance(name, str) else name
        if data is None:
            given = [each for each, data in self._sets.items() if data is not None]
            raise ConfigError(
                f"there is no dataset {name!r}; fit was given {', '.join(given)}. "
                f"{nearest(name, given)}".rstrip()
            )
        where = name if isinstance(name, str) else "images"
        feed = make_feed(data, shuffle=False, whole=True, where=where, **self._feeding)
        with closing(feed):
            yield feed
