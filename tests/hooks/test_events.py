from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import sslengine.engine.task  # noqa: F401 - imports Classy Vision without its warnings
from sslengine.checkpoint import files
from sslengine.checkpoint.options import CheckpointOptions
from sslengine.engine.checkpointing import SaveCheckpoints
from sslengine.engines.train import train as train_engine
from sslengine.errors import CheckpointError, ConfigError
from sslengine.hooks.events import (
    Hook,
    compile_events,
    hook_name,
    hook_state,
    load_hook_state,
)
from tests.engine.runs import make_task, train
from tests.engines.runs import PowerCut, make_run


class _Recorder(Hook):
    def __init__(self, log: list[str], tag: str) -> None:
        self.log, self.tag = log, tag

    def on_update(self, task: Any) -> None:
        self.log.append(f"{self.tag}.on_update")

    def state_dict(self) -> dict[str, Any]:
        return {"tag": self.tag}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tag = state["tag"]


def test_only_what_is_overridden_is_called_in_the_order_of_the_hooks() -> None:
    log: list[str] = []
    calls = compile_events([_Recorder(log, "a"), Hook(), _Recorder(log, "b")])
    assert {event: len(each) for event, each in calls.items() if each} == {"on_update": 2}
    for call in calls["on_update"]:
        call(SimpleNamespace())
    assert log == ["a.on_update", "b.on_update"]


def test_a_hook_written_for_classy_vision_works() -> None:
    from classy_vision.hooks import ClassyHook

    class Theirs(ClassyHook):
        on_phase_start = ClassyHook._noop
        on_start = ClassyHook._noop
        on_end = ClassyHook._noop
        on_phase_end = ClassyHook._noop

        def on_step(self, task: Any) -> None:
            task.seen = True

        def get_classy_state(self) -> dict[str, Any]:
            return {"x": 1}

        def set_classy_state(self, state: dict[str, Any]) -> None:
            self.loaded = state

    hook = Theirs()
    calls = compile_events([hook])
    assert [event for event, each in calls.items() if each] == ["on_step"]
    task = SimpleNamespace()
    calls["on_step"][0](task)
    assert task.seen
    assert hook_name(hook) == "Theirs"
    load_hook_state(hook, hook_state(hook))
    assert hook.loaded == {"x": 1}


class _Misspelt(Hook):
    def on_phase_begin(self, task: Any) -> None:
        raise AssertionError("never called")


class _OfAnother:
    def after_epoch(self, task: Any) -> None:
        raise AssertionError("never called")


@pytest.mark.parametrize(
    ("hook", "message"),
    [(_Misspelt, "_Misspelt.on_phase_begin would never"), (_OfAnother, "_OfAnother would never")],
)
def test_what_is_never_called_is_an_error(tmp_path: Path, hook: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_task(tmp_path, [hook()])


class _Counts(Hook):
    def __init__(self, by: int, called: str = "_Counts") -> None:
        self.by, self.called, self.count = by, called, 0

    name = property(lambda self: self.called)

    def on_step(self, task: Any) -> None:
        self.count += self.by

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def test_of_two_hooks_of_one_name_no_state_is_lost(tmp_path: Path) -> None:
    saves = SaveCheckpoints(tmp_path, CheckpointOptions())
    with pytest.raises(CheckpointError, match="are named '_Counts'"):
        train(tmp_path, [_Counts(1), _Counts(5), saves])
    train(tmp_path, [_Counts(1, "a"), _Counts(5, "b"), saves], OPTIMIZER__num_epochs=1)
    stored = files.newest(tmp_path)[1]["classy_state_dict"]["hooks"]
    assert (stored["a"], stored["b"]) == ({"count": 4}, {"count": 20})


class _Seldom(Hook):
    """Acts at every third step, from the second on."""

    due = 2

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def on_backward(self, task: Any) -> None:
        self.seen.append(("on_backward", task.iteration + 1))

    def on_step(self, task: Any) -> None:
        self.seen.append(("on_step", task.iteration))
        self.due = task.state.steps + 3


def test_a_hook_is_called_when_it_is_due(tmp_path: Path) -> None:
    train(tmp_path, [hook := _Seldom()])  # 8 steps
    assert hook.seen == [(event, n) for n in (2, 5, 8) for event in ("on_backward", "on_step")]


# ---- a run is cut and resumed


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
        train_engine(
            make_run(tmp_path, HOOKS__EXTRA=extra, CHECKPOINT__CHECKPOINT_ITER_FREQUENCY=1)
        )

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
