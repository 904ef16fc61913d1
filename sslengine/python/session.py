"""The result of `fit`: the trained model, its history, predictions and losses."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from sslengine.data.given import make_feed
from sslengine.errors import ConfigError, nearest
from sslengine.python.history import History
from sslengine.python.passes import Feed, finish, predict_feed
from sslengine.python.task import PythonTask


class Session:
    def __init__(self, task: PythonTask, sets: dict[str, Any], history: History) -> None:
        self._task, self._sets = task, sets
        self.model: nn.Module = task.parts.base_model
        self.loss: nn.Module = task.parts.loss
        self.history = history
        self._feeds: dict[str, Feed] = {}
        self._kept: dict[Any, Any] = {}

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
        name: str = "test",
        *,
        collate: Callable[[list[Any]], Any] | None = None,
        transform: Callable[[Any], Any] | None = None,
        fresh: bool = False,
    ) -> Any:
        """`sslengine.predict` on "train", "validation" or "test". Outputs are cached until the
        model changes. fresh: ignore the cache."""
        outputs = self._once(
            "predict", name, fresh,
            lambda feed: predict_feed(self.model, feed, self._task.parts.precision),
        )  # fmt: skip
        return finish(outputs, collate, transform)

    def evaluate_loss(self, name: str = "test", *, fresh: bool = False) -> dict[str, float]:
        """The mean loss per sample over a dataset, with its parts, as in a test phase."""
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
        """A hash of the values of model and loss. Tensors' version counters miss the writes of
        fused optimizers. Cost: reads all weights, 0.1 s for 100 MB."""
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
            feeding = {
                **self._task.given.feeding,
                "shuffle": False,
                "drop_last": False,
                "whole": True,
            }
            task = self._task
            self._feeds[name] = make_feed(
                self._sets[name], seed=task.parts.seed, device=task.device, where=name, **feeding
            )
        return self._feeds[name]
