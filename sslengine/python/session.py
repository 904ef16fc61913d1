"""The result of `fit`: the trained model, its history, predictions and losses."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import nn

from sslengine.data.given import make_feed
from sslengine.errors import ConfigError, nearest
from sslengine.hooks.events import Hook, Task
from sslengine.monitor.losses import MAIN
from sslengine.python.passes import Feed, combine, gather_batches, predict_batches
from sslengine.python.task import PythonTask
from sslengine.registry import import_dotted


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
    """Fill a History. It reads losses when the ledger does, so it adds no synchronisation."""

    def __init__(self, history: History) -> None:
        self.history = history
        self._rates: dict[int, dict[str, float]] = {}

    def on_phase_start(self, task: Task) -> None:
        task.ledger.take_history()

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
        entries = task.ledger.take_history()
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


class Session:
    """A run of `fit`: its model, loss and history, and what can be computed of its datasets."""

    def __init__(self, task: PythonTask, sets: dict[str, Any], history: History) -> None:
        self._task, self._sets = task, sets
        self.model: nn.Module = task.parts.base_model
        self.loss: nn.Module = task.parts.loss
        self.history = history
        self._feeds: dict[str, Feed] = {}
        self._kept: dict[Any, Any] = {}

    def __repr__(self) -> str:
        losses = (f"{split} loss {record['loss']:.4g}" for split, record in self.results.items())
        state = "complete" if self.complete else "not complete"
        return f"Session({', '.join([f'{self.iteration} steps', state, *losses])})"

    @property
    def iteration(self) -> int:
        """Train steps done, also those before a resume."""
        return int(self._task.iteration)

    @property
    def complete(self) -> bool:
        return bool(self._task.done_training())

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        """The metrics of the last train phase and of the last test phase."""
        return {record["split"]: record for record in self.history.epochs}

    def predict(
        self,
        name: Any = "test",
        *,
        collate: Callable[[list[Any]], Any] | None = None,
        transform: Callable[[Any], Any] | None = None,
        fresh: bool = False,
    ) -> Any:
        """Call `sslengine.predict` on "train", "validation" or "test", or on other data.

        Outputs of the former are cached until the model changes; fresh: ignore the cache.
        """
        if isinstance(name, str):
            outputs = self._once("predict", name, fresh, self._outputs)
        else:
            with closing(self._make_feed(name, "images")) as feed:
                outputs = self._outputs(feed)
        return combine(outputs, collate, transform)

    def _outputs(self, feed: Feed) -> list[Any]:
        return predict_batches(self.model, feed, self._task.parts.precision)

    def judge(self, train: str = "train", val: str = "validation") -> dict[str, Any]:
        """Print and return how well the model's outputs, a row for each sample, tell the targets by
        nearest neighbours and a linear probe, as `sslengine judge --features`."""
        with TemporaryDirectory() as folder:
            files = [Path(folder, f"{split}.npz") for split in ("train", "test")]
            for name, file in zip((train, val), files, strict=True):
                rows = self.predict(name).flatten(1).float().numpy()
                np.savez(file, features=rows, labels=self._targets(name))
            found = Path(folder, "scores.json")
            judge = import_dotted("sslengine.command.judge:main")
            judge(["--features", *map(str, files), "--out", str(found)])
            scores: dict[str, Any] = json.loads(found.read_text())
            return scores

    def _targets(self, name: str) -> Any:
        mine = [batch["label"][0].cpu() for batch in self._feed(name).batches()]
        return torch.cat(gather_batches(mine)).numpy()

    def report(self) -> Path:
        """Write the page of the run's folder, as `sslengine report`, and return its file."""
        if self._task.folder is None:
            raise ConfigError("there are no files to make a report of. Give fit a folder: out=...")
        import_dotted("sslengine.command.report:main")([str(self._task.folder)])
        return self._task.folder / "report.html"

    def evaluate_loss(self, name: str = "test", *, fresh: bool = False) -> dict[str, float]:
        """Return the mean loss per sample over a dataset, with its parts, as in a test phase."""
        kept: dict[str, float] = self._once("loss", name, fresh, self._task.mean_loss)
        return dict(kept)

    def close(self) -> None:
        """Stop the loader workers. The next call starts them again."""
        for feed in self._feeds.values():
            feed.close()
        self._feeds = {}

    def _once(self, kind: str, name: str, fresh: bool, compute: Callable[[Feed], Any]) -> Any:
        key = (kind, name)
        version, result = self._kept.get(key, (None, None))
        now = self._version()
        if fresh or version != now:
            result = compute(self._feed(name))
            self._kept[key] = (now, result)
        return result

    def _version(self) -> bytes:
        """Hash the values of model and loss: version counters miss the writes of fused optimizers.

        Cost: reads all weights, 0.1 s for 100 MB.
        """
        digest = hashlib.blake2b()
        for part in (self.model, self.loss):
            for tensor in (*part.parameters(), *part.buffers()):
                flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
                digest.update(flat.cpu().numpy().data)
        return digest.digest()

    def _feed(self, name: str) -> Feed:
        if self._sets.get(name) is None:
            given = [each for each, data in self._sets.items() if data is not None]
            raise ConfigError(
                f"there is no dataset {name!r}; fit was given {', '.join(given)}. "
                f"{nearest(name, given)}".rstrip()
            )
        if name not in self._feeds:
            self._feeds[name] = self._make_feed(self._sets[name], name)
        return self._feeds[name]

    def _make_feed(self, data: Any, name: str) -> Feed:
        task, whole = self._task, {"shuffle": False, "drop_last": False, "whole": True}
        return make_feed(data, seed=task.parts.seed, device=task.device, where=name,
                         **{**task.given.feeding, **whole})  # fmt: skip
