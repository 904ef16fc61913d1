"""A run is cut and resumed: hooks have their states again, wherever they make or apply them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sslengine.checkpoint import files
from sslengine.engines.train import train
from sslengine.errors import CheckpointError
from sslengine.hooks.events import Hook
from tests.engine.runs import make_task
from tests.engines.runs import PowerCut, make_run


class SetsInInit(Hook):
    count: int

    def __init__(self) -> None:
        self.count = 0

    def on_step(self, task: Any) -> None:
        self.count += 1

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


class LoadsIntoStarted(Hook):
    """What it loads into is made in on_start."""

    def on_start(self, task: Any) -> None:
        self.counts = {"count": 0}

    def on_step(self, task: Any) -> None:
        self.counts["count"] += 1

    def state_dict(self) -> dict[str, Any]:
        return self.counts

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.counts.update(state)


class ReadsInStart(SetsInInit):
    """What it has loaded is applied in on_start, where it gets the task."""

    def __init__(self) -> None:
        self.loaded = {"count": 0}

    def on_start(self, task: Any) -> None:
        self.count = self.loaded.pop("count")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loaded = state


HOOKS = [SetsInInit, LoadsIntoStarted, ReadsInStart]


def test_a_cut_run_counts_as_if_it_had_not_been_cut(tmp_path: Path) -> None:
    names = [f"{__name__}:{each.__name__}" for each in HOOKS]

    def run(cut_after: int) -> None:
        extra = [*names, {"name": "test_power_cut", "after": cut_after}]
        train(make_run(tmp_path, HOOKS__EXTRA=extra, CHECKPOINT__CHECKPOINT_ITER_FREQUENCY=1))

    with pytest.raises(PowerCut):
        run(3)
    run(99)
    state = files.newest(tmp_path / "checkpoints")[1]["classy_state_dict"]
    steps = state["progress"]["iteration"]
    assert steps > 3
    counts = {each.__name__: state["hooks"][each.__name__] for each in HOOKS}
    assert counts == {each.__name__: {"count": steps} for each in HOOKS}


def test_a_state_that_cannot_be_loaded_names_its_hook(tmp_path: Path) -> None:
    state = make_task(tmp_path, [SetsInInit()]).get_classy_state()
    state["hooks"]["SetsInInit"] = {"counted": 1}
    with pytest.raises(CheckpointError, match="the hook SetsInInit .* KeyError: 'count'"):
        make_task(tmp_path, [SetsInInit()]).set_classy_state(state)
