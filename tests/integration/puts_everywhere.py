"""Hooks of all kinds, each of which puts a metric at every event: for test_records.py.

A value is how many train steps were made when it was put, so a record shows of when it is.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from classy_vision.hooks import ClassyHook
from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.hooks.events import EVENTS, Hook


def _put(name: str, event: str) -> Any:
    def call(self: Any, task: Any) -> None:
        task.storage.put_scalar(f"{name}/{event}", task.iteration, window=1)

    return call


def _puts(name: str, base: type, events: tuple[str, ...] = EVENTS) -> type:
    return type(name, (base,), {event: _put(name, event) for event in events})


Named = _puts("named", Hook)
Own = _puts("own", Hook)
Classy = _puts("classy", ClassyHook)


class Detectron2:
    trainer: Any

    def _put(self, call: str) -> None:
        made = self.trainer.iter
        self.trainer.storage.put_scalar(f"detectron2/{call}", made, smoothing_hint=False)

    def before_train(self) -> None:
        self._put("before_train")

    def before_step(self) -> None:
        self._put("before_step")

    def after_backward(self) -> None:
        self._put("after_backward")

    def after_step(self) -> None:
        self._put("after_step")

    def after_train(self) -> None:
        self._put("after_train")


class OverRanks(Hook):
    """What comes from all ranks, and what is added to a phase's results."""

    def on_step(self, task: Any) -> None:
        task.storage.put_scalar("ranks/on_step", task.iteration, window=1, reduce="sum")

    def on_phase_end(self, task: Any) -> None:
        task.storage.put_scalar("ranks/on_phase_end", task.iteration, window=1, reduce="sum")
        task.phase_results["results"] = {"on_phase_end": task.iteration}


class Method(nn.Module):
    """Its own hooks are called first."""

    def forward(self, output: Any, target: Tensor) -> Tensor:
        return F.cross_entropy(output, target)

    def hooks(self) -> list[Any]:
        return [Own()]


class Kill(Hook):
    """As a power cut, in a life whose file is not there yet."""

    def __init__(self, lives: list[list[Any]]) -> None:
        self.lives = lives  # (train phase?, steps of the phase), of each life but the last
        self.rank = int(os.environ.get("RANK", "0"))

    def on_start(self, task: Any) -> None:
        self.life = next(n for n in range(9) if not self._mark(task, n).exists())
        self._mark(task, self.life).parent.mkdir(exist_ok=True)
        self._mark(task, self.life).touch()

    def _mark(self, task: Any, life: int) -> Path:
        return Path(f"{task.run_dir}_lives") / f"{life}_{self.rank}"

    def on_forward(self, task: Any) -> None:
        here = [task.train, task.iteration, task.progress.step]
        if self.life < len(self.lives) and here == self.lives[self.life]:
            task.services.checkpoints.saver.wait()  # so that it is known where the run resumes
            os.kill(os.getpid(), signal.SIGKILL)
