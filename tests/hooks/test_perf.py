from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from sslengine.hooks.perf import LogPerfStats
from sslengine.monitor.perf import PerfStats


@pytest.mark.parametrize(("frequency", "reports"), [(-1, 1), (2, 3)])
def test_stage_times_are_logged(
    frequency: int, reports: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    task = SimpleNamespace(perf=PerfStats(), progress=SimpleNamespace(step=0))
    hook = LogPerfStats(frequency)
    hook.on_phase_start(task)
    for _ in range(4):
        with task.perf.forward:
            pass
        task.progress.step += 1
        hook.on_step(task)
    hook.on_phase_end(task)
    assert len(caplog.messages) == reports
    assert "forward" in caplog.messages[-1]
    hook.on_phase_start(task)
    assert task.perf.report() == []
