from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sslengine.engine.services import Services, services_of
from tests.config.recipes import resolved
from tests.engine.runs import make_task


def _names(folder: Path | None, **changes: Any) -> list[str]:
    chosen = services_of(resolved(**changes).config, folder, readers=(SimpleNamespace(),))
    return [type(each).__name__ for each in chosen]


def test_the_order(tmp_path: Path) -> None:
    early = {"HOOKS__EARLY_STOPPING__MONITOR": "train.loss"}
    assert _names(tmp_path, **early) == [
        "LogMetrics", "SimpleNamespace", "StopEarly", "SaveCheckpoints", "StopOnSignals",
    ]  # fmt: skip
    assert _names(None) == ["LogMetrics", "SimpleNamespace"]  # without a folder nothing is saved
    assert list(Services()) == []


def test_they_are_called_after_all_hooks(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    for event, calls in task.state.calls.items():
        callers = [call.__self__ for call in calls]
        of_services = [each for each in task.services if each in callers]
        assert callers[len(callers) - len(of_services) :] == of_services, event
        assert not set(map(id, of_services)) & set(map(id, task.hooks))
