from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sslengine.checkpoint import files
from sslengine.checkpoint.options import CheckpointOptions
from sslengine.errors import CheckpointError, ConfigError
from sslengine.hooks.events import Hook
from sslengine.registry import HOOKS, register_hook
from sslengine.services.checkpointing import SaveCheckpoints
from tests.config.recipes import resolved
from tests.registries import as_before
from tests.task.runs import make_task, train


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
