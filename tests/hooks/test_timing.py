from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

from sslengine.hooks import timing
from sslengine.hooks.timing import LogPerfStats, PerfStats, StageTime
from tests.engine.tasks import ListModel, begin, make_batch
from tests.gpu.place import nothing_waits


class Clock:
    """Time that passes only when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(timing, "perf_counter", clock)
    return clock


def test_times_add_up_per_stage_and_come_out_as_means(clock: Clock) -> None:
    stats = PerfStats()
    with stats.forward:  # before it is asked for
        clock.now += 1.0
    assert "MONITOR_PERF_STATS=true" in stats.report_str()
    stats.start()
    for seconds in (1.0, 3.0):
        with stats.forward:
            clock.now += seconds
    with pytest.raises(ValueError), stats.backward:  # noqa: PT012
        clock.now += 2.0
        raise ValueError
    assert stats.report() == [
        StageTime("forward", 2, 2000.0, None), StageTime("backward", 1, 2000.0, None)
    ]  # fmt: skip
    assert "forward" in stats.report_str()
    stats.start()
    assert stats.report() == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_time_is_read_without_waiting() -> None:
    stats = PerfStats()
    stats.start(measure_gpu=True)
    matrix = torch.randn(2048, 2048, device="cuda")
    with nothing_waits():
        for _ in range(5):
            with stats.forward:
                matrix = matrix @ matrix.T / 2048
        stats.report()
    torch.cuda.synchronize()
    (row,) = stats.report()
    assert row.gpu_ms is not None
    assert row.gpu_ms > 0


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
