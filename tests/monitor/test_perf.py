from __future__ import annotations

import pytest
import torch

from sslengine.monitor import perf
from sslengine.monitor.perf import STAGES, PerfStats
from tests.gpu.place import nothing_waits


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    clock = _Clock()
    monkeypatch.setattr(perf, "perf_counter", clock)
    return clock


def test_the_stages_have_vissls_names() -> None:
    assert STAGES == (
        "read_sample", "forward", "loss_compute", "loss_all_reduce", "meters_update", "backward",
        "optimizer_step", "train_step_total",
    )  # fmt: skip


def test_times_add_up_per_stage_and_come_out_as_means(clock: _Clock) -> None:
    stats = PerfStats()
    stats.start()
    for seconds in (1.0, 3.0):
        with stats.forward:
            clock.now += seconds
    (row,) = stats.report()
    assert (row.name, row.count, row.host_ms, row.gpu_ms) == ("forward", 2, 2000.0, None)
    assert "forward" in stats.report_str()
    stats.start()
    assert stats.report() == []


def test_nothing_is_timed_before_it_is_asked_for(clock: _Clock) -> None:
    stats = PerfStats()
    with stats.forward:
        clock.now += 1.0
    assert stats.report() == []
    assert "MONITOR_PERF_STATS=true" in stats.report_str()


def test_a_stage_that_raises_is_timed_too(clock: _Clock) -> None:
    stats = PerfStats()
    stats.start()
    with pytest.raises(ValueError), stats.backward:  # noqa: PT012
        clock.now += 2.0
        raise ValueError
    assert stats.report()[0].host_ms == 2000.0


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
