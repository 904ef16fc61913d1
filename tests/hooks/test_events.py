from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import sslengine.engine.task  # noqa: F401 - imports Classy Vision without its warnings
from sslengine.checkpoint import files
from sslengine.checkpoint.options import CheckpointOptions
from sslengine.engine.checkpointing import SaveCheckpoints
from sslengine.errors import CheckpointError, ConfigError
from sslengine.hooks.events import (
    EVENTS,
    Hook,
    compile_events,
    hook_name,
    hook_state,
    load_hook_state,
)
from sslengine.registry import HOOKS, register_hook
from tests.config.recipes import resolved
from tests.engine.runs import make_task, train
from tests.registries import as_before


class _Recorder(Hook):
    def __init__(self, log: list[str], tag: str) -> None:
        self.log, self.tag = log, tag

    def on_update(self, task: Any) -> None:
        self.log.append(f"{self.tag}.on_update")

    def state_dict(self) -> dict[str, Any]:
        return {"tag": self.tag}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tag = state["tag"]


def test_events_come_in_vissls_order() -> None:
    assert tuple(event for event in EVENTS if event != "on_step_start") == (
        "on_start", "on_phase_start", "on_forward", "on_loss_and_meter", "on_backward", "on_update",
        "on_step", "on_phase_end", "on_end", "on_exception",
    )  # fmt: skip


def test_a_step_starts_before_anything_of_it_is_done() -> None:
    assert EVENTS.index("on_step_start") == EVENTS.index("on_forward") - 1


def test_the_hooks_of_an_event_may_be_timed_together() -> None:
    log: list[str] = []

    class Timer(AbstractContextManager[None]):
        def __enter__(self) -> None:
            log.append("begins")

        def __exit__(self, *_: object) -> None:
            log.append("ends")

    calls = compile_events([_Recorder(log, "a"), _Recorder(log, "b")], timer=Timer())
    for event in ("on_update", "on_step"):  # nobody listens to the second
        for call in calls[event]:
            call(SimpleNamespace())
    assert log == ["begins", "a.on_update", "b.on_update", "ends"]


def test_only_what_is_overridden_is_called_in_the_order_of_the_hooks() -> None:
    log: list[str] = []
    calls = compile_events([_Recorder(log, "a"), Hook(), _Recorder(log, "b")])
    assert {event: len(each) for event, each in calls.items() if each} == {"on_update": 2}
    for call in calls["on_update"]:
        call(SimpleNamespace())
    assert log == ["a.on_update", "b.on_update"]


def test_every_event_of_the_base_does_nothing() -> None:
    for event in EVENTS:
        assert getattr(Hook(), event)(SimpleNamespace()) is None
    Hook().load_state_dict(Hook().state_dict())


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


def test_names_and_state_of_our_own() -> None:
    hook = _Recorder([], "a")
    assert hook_name(hook) == "_Recorder"
    load_hook_state(hook, {"tag": "z"})
    assert hook_state(hook) == {"tag": "z"}


def test_an_object_that_is_no_hook_at_all_has_no_state() -> None:
    plain = SimpleNamespace(name="plain")
    assert hook_state(plain) == {}
    load_hook_state(plain, {})


class _Misspelt(Hook):
    def on_phase_begin(self, task: Any) -> None:
        raise AssertionError("never called")


class _OfLightning(Hook):
    def on_train_batch_end(self, task: Any) -> None:
        raise AssertionError("never called")


class _OfAnother:
    def after_epoch(self, task: Any) -> None:
        raise AssertionError("never called")


class _Right(Hook):
    @staticmethod
    def on_step(task: Any) -> None:
        pass


class _WithoutTask(Hook):
    def on_step(self) -> None:  # type: ignore[override]
        raise AssertionError("an error of Python's own")


class _Forgetful(Hook):
    def state_dict(self) -> dict[str, Any]:
        return {"count": 1}


class _Classy:
    """As Classy Vision's hooks, which may have more events than ours."""

    name = "classy"
    on_step = on_sample = staticmethod(lambda task: None)


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        (_Misspelt, r"_Misspelt.on_phase_begin: there is no such event.* mean 'on_phase_"),
        (_OfLightning, r"_OfLightning.on_train_batch_end: there is no such event"),
        (_OfAnother, r"_OfAnother is no hook: it has none of on_start, "),
        (_WithoutTask, r"_WithoutTask.on_step: expected on_step\(self, task\)"),
        (_Forgetful, r"_Forgetful.state_dict: expected also load_state_dict\(self, state\)"),
    ],
)
def test_what_is_never_called_is_an_error(tmp_path: Path, hook: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_task(tmp_path, [hook()])


@pytest.mark.parametrize("kind", [_Misspelt, _WithoutTask, _Forgetful])
def test_a_config_with_such_a_hook_is_refused(kind: type[Hook]) -> None:
    message = f"config.HOOKS.EXTRA.1: {kind.__name__}.*(no such event|expected)"
    with as_before(HOOKS):
        register_hook("wrong")(kind)
        register_hook("right")(_Right)
        with pytest.raises(ConfigError, match=message):
            resolved(HOOKS__EXTRA=["right", {"name": "wrong"}])


def test_events_of_other_engines_are_theirs(tmp_path: Path) -> None:
    make_task(tmp_path, [_Classy()])


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
    with pytest.raises(CheckpointError, match="two hooks are named '_Counts'"):
        train(tmp_path, [_Counts(1), _Counts(5), saves])
    train(tmp_path, [_Counts(1, "a"), _Counts(5, "b"), saves], OPTIMIZER__num_epochs=1)
    stored = files.newest(tmp_path)[1]["classy_state_dict"]["hooks"]
    assert (stored["a"], stored["b"]) == ({"count": 4}, {"count": 20})
