from __future__ import annotations

import collections
import enum
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sslengine.checkpoint import files
from sslengine.checkpoint.options import CheckpointOptions
from sslengine.checkpoint.plain import expect_plain
from sslengine.checkpoint.saver import Saver
from sslengine.checkpoint.snapshot import to_host
from sslengine.errors import CheckpointError
from sslengine.hooks.events import Hook
from sslengine.services.checkpointing import SaveCheckpoints
from tests.task.runs import train


class _Colour(enum.Enum):
    RED = 1


PLAIN: dict[str, Any] = {
    "numbers": [1, 2.5, True, None, 1j],
    "texts": ("a", b"b"),
    "keys": {1: 2, (1, 2): 3},
    "set": {1, 2},
    "counted": collections.Counter("aab"),
    "by default": collections.defaultdict(int, a=1),
    "tensors": [torch.ones(2), torch.nn.Parameter(torch.ones(2))],
    "of torch": [torch.float32, torch.device("cpu"), torch.Size([2])],
    "numpy's generator": np.random.default_rng(0).bit_generator.state,
    "Python's generator": random.Random(0).getstate(),
}  # fmt: skip


def test_what_passes_can_be_read_again(tmp_path: Path) -> None:
    expect_plain(PLAIN)
    files.write(to_host(PLAIN), tmp_path, "model_phase0.torch", {"results": {}})
    assert files.read(tmp_path / "model_phase0.torch")["set"] == {1, 2}


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (np.float64(1.5), "numpy.float64"),  # a subclass of float
        (np.ones(3), "numpy.ndarray"),
        (collections.deque([1]), "collections.deque"),
        (_Colour.RED, f"{__name__}._Colour"),
        (Path("x"), "PosixPath"),
        (lambda: 1, "builtins.function"),
        (torch.nn.Linear(2, 2), "torch.nn.modules.linear.Linear"),
    ],
)
def test_what_could_not_be_read_is_named(value: Any, kind: str) -> None:
    with pytest.raises(CheckpointError, match=r"mine\.found\.1: .*") as caught:
        expect_plain({"other": 1, "mine": {"found": [0, value]}})
    assert kind in str(caught.value)


def test_a_key_is_a_value_too() -> None:
    with pytest.raises(CheckpointError, match=r"mine\._Colour\.RED"):
        expect_plain({"mine": {_Colour.RED: 1}})


class _Mean(Hook):
    """Its state is a number of numpy's after the first step."""

    def __init__(self, mean: Any) -> None:
        self.mean, self.steps = mean, 0

    def on_step(self, task: Any) -> None:
        self.steps += 1
        self.mean = np.mean([1.0, 2.0])

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean = state["mean"]


@pytest.mark.parametrize(("start", "steps"), [(np.float64(0), 0), (0.0, 4)])
def test_a_run_does_not_train_on_without_a_checkpoint_that_can_be_read(
    tmp_path: Path, start: Any, steps: int
) -> None:
    """All were written, and none could be read."""
    hook = _Mean(start)
    with pytest.raises(CheckpointError, match=r"hooks\._Mean\.mean: numpy\.float64"):
        train(tmp_path, [hook, SaveCheckpoints(tmp_path, CheckpointOptions())])
    assert files.in_order(tmp_path) == []
    assert hook.steps == steps


def test_whatever_a_write_raises_is_the_runs_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread ended with a traceback, and the run with status 0."""
    monkeypatch.setattr("sslengine.checkpoint.saver.WAITS", ())
    mine = Saver(tmp_path, CheckpointOptions())
    mine.save({"x": lambda: 1}, "model_phase0.torch", {"results": {}})
    with pytest.raises(CheckpointError, match="cannot write"):
        mine.finish()


def test_a_set_may_change_while_it_is_written() -> None:
    state = {"seen": {1}}
    copy = to_host(state)
    state["seen"].add(2)
    assert copy == {"seen": {1}}
