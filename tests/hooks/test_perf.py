from __future__ import annotations

import logging

import pytest
from torch import nn

from sslengine.hooks.perf import LogPerfStats
from tests.train_steps.tasks import ListModel, begin, make_batch


@pytest.mark.parametrize(("frequency", "reports"), [(-1, 1), (2, 3)])
def test_stage_times_are_logged(
    frequency: int, reports: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    task = begin([make_batch()] * 4, ListModel(), nn.CrossEntropyLoss(), LogPerfStats(frequency))
    for _ in range(4):
        task.step()
    task.on_phase_end()
    told = [text for text in caplog.messages if "stage times" in text]
    assert len(told) == reports
    assert "forward" in told[-1]
    task.start_phase()
    task.on_phase_start()
    assert task.perf.report() == []
