from __future__ import annotations

from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

from sslengine.hooks.events import (
    EVENTS,
    Hook,
    compile_events,
    hook_name,
    hook_state,
    load_hook_state,
)


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

    from sslengine.task import task  # noqa: F401 - imports Classy Vision without its warnings

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
