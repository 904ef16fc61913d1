from __future__ import annotations

import io
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

from sslengine.checkpoint import files
from sslengine.distributed.ranks import rank, world_size
from sslengine.engine import loop
from sslengine.engine.build import build_base_model
from sslengine.engines.train import train as train_engine
from sslengine.errors import ConfigError, Preempted
from sslengine.hooks import profile
from sslengine.hooks.events import Hook
from sslengine.hooks.options import ProfilingOptions, RuntimeProfilingOptions
from sslengine.hooks.profile import IterationTimer, LogPerfStats, PerfStats, ProfileSteps
from sslengine.monitor.console import ConsoleWriter
from sslengine.monitor.writers import RunPlace
from sslengine.trust import Opened, closed
from tests.config.recipes import resolved
from tests.engine.runs import CPU, Stop, Watch, make_task, same, train, weights
from tests.engine.tasks import ListModel, begin, make_batch
from tests.engine.test_task import SUPERVISED, SYNC_BN, WITH_TEST
from tests.engines.runs import make_run
from tests.gpu.place import nothing_waits
from tests.ranks import RankPool


class Clock:
    """Time that passes only when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(profile, "perf_counter", clock)
    return clock


# ---- stages


def test_times_add_up_per_stage_and_come_out_as_means(clock: Clock) -> None:
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


def test_nothing_is_timed_before_it_is_asked_for(clock: Clock) -> None:
    stats = PerfStats()
    with stats.forward:
        clock.now += 1.0
    assert stats.report() == []
    assert "MONITOR_PERF_STATS=true" in stats.report_str()


def test_a_stage_that_raises_is_timed_too(clock: Clock) -> None:
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


# ---- the time of a step


class TakesTime(Hook):
    """Steps and hooks of known length."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_step_start(self, task: Any) -> None:
        self.clock.now += 0.25  # a hook

    def on_phase_end(self, task: Any) -> None:
        self.clock.now += 1.0  # a hook, once a phase


def _run(
    folder: Path, clock: Clock, timer: IterationTimer, hooks: list[Any], **changes: Any
) -> str:
    task = make_task(
        folder, [timer, TakesTime(clock), *hooks], HOOKS__ITERATION_TIMER=True, **changes
    )
    made = task.parts.train_step_function

    def slow(task: Any) -> Any:
        # The first steps take long; a test step longer than any.
        clock.now += (10.0 if task.iteration < 2 else 2.0) if task.train else 1000.0
        return made(task)

    task.parts = replace(task.parts, train_step_function=slow)
    console = Console(file=io.StringIO(), width=200)
    task.writers.append(ConsoleWriter(RunPlace(folder, 0, console)))
    try:
        loop.run(task)
    finally:
        task.close()
        text = console.file.getvalue()  # type: ignore[attr-defined]
    return str(text)


def test_steps_and_the_share_of_hooks(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sslengine")
    timer = IterationTimer(warmup_steps=2)
    screen = _run(tmp_path, clock, timer, [], **SUPERVISED, **WITH_TEST)
    # 8 steps in two phases, of which 2 are not counted: 6 of 2 s and 0.25 s of a hook each,
    # and a hook at the end of both train phases. Test phases do not count.
    assert timer.steps == 6
    assert timer.seconds == pytest.approx(6 * 2.25 + 2 * 1.0)
    assert timer.in_hooks == pytest.approx(6 * 0.25 + 2 * 1.0)
    line = "6 steps in 0:00:16, 2.583 s each; 22.6 % in hooks"
    assert line in caplog.text
    assert line in screen


def test_the_figures_are_logged_with_each_train_phase(tmp_path: Path, clock: Clock) -> None:
    class Read(Hook):
        seen: list[dict[str, Any]] = []

        def on_phase_end(self, task: Any) -> None:
            self.seen.append(dict(task.phase_results))

    _run(tmp_path, clock, IterationTimer(warmup_steps=2), [Read()])
    assert Read.seen[0]["seconds_per_step"] == pytest.approx(2.25)
    assert Read.seen[0]["percent_in_hooks"] == pytest.approx(100 * 0.25 / 2.25)


def test_it_is_told_when_a_step_raises_too(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sslengine")
    with pytest.raises(Stop):
        _run(tmp_path, clock, IterationTimer(warmup_steps=2), [Watch(stop_after=4)])
    assert "2 steps in" in caplog.text


def test_without_it_events_are_called_as_they_are(tmp_path: Path) -> None:
    watch = Watch()
    assert watch in make_task(tmp_path, [watch]).state.dated


# ---- torch's profiler


BOTH: dict[str, Any] = {
    "PROFILING__RUNTIME_PROFILING__USE_PROFILER": True,
    "PROFILING__START_ITERATION": 2,
    "PROFILING__WARMUP_ITERATIONS": 1,
    "PROFILING__NUM_ITERATIONS": 2,
}


def _forwards(trace: Path) -> int:
    """How often the model was gone through: the convolutions of the trace, by those of a model."""
    events = json.loads(trace.read_text())["traceEvents"]
    found = sum(event.get("name") == "aten::conv2d" for event in events)
    model = build_base_model(resolved().config, CPU)
    of_one = sum(type(module).__name__ == "Conv2d" for module in model.modules())
    assert found % of_one == 0
    return found // of_one


def test_the_window_is_in_the_trace_and_nothing_else(tmp_path: Path) -> None:
    train_engine(make_run(tmp_path, **BOTH, PROFILING__RUNTIME_PROFILING__TENSORBOARD_TRACE=True))
    folder = tmp_path / "profile"
    assert _forwards(folder / "rank0_trace.json") == 2
    operators = (folder / "rank0_ops.txt").read_text()
    assert "aten::convolution_backward" in operators
    assert "Self CPU" in operators
    (board,) = (folder / "tensorboard").iterdir()
    assert board.name == "rank0.5.pt.trace.json"
    assert board.read_bytes() == (folder / "rank0_trace.json").read_bytes()


def test_a_profile_changes_nothing_of_the_run(tmp_path: Path) -> None:
    plain, profiled = Watch(), Watch()
    one = train(tmp_path, [plain])
    two = train(tmp_path, [profiled, _hook(tmp_path, 1, 0, 2)])
    assert profiled.losses == plain.losses
    assert same(weights(one), weights(two))


def _hook(folder: Path, start: int, warmup: int, steps: int, **options: Any) -> ProfileSteps:
    chosen = ProfilingOptions(
        START_ITERATION=start,
        WARMUP_ITERATIONS=warmup,
        NUM_ITERATIONS=steps,
        RUNTIME_PROFILING=RuntimeProfilingOptions(USE_PROFILER=True),
        **options,
    )
    return ProfileSteps(chosen, folder)


def test_a_run_that_ends_within_the_window_leaves_what_there_is(tmp_path: Path) -> None:
    chosen = str(tmp_path / "elsewhere")
    train(tmp_path, [_hook(tmp_path, 6, 0, 10, OUTPUT_FOLDER=chosen)])
    assert _forwards(tmp_path / "elsewhere" / "rank0_trace.json") == 2


def test_leaving_after_the_window(tmp_path: Path) -> None:
    stop = {**BOTH, "PROFILING__STOP_TRAINING_AFTER_PROFILING": True}
    with pytest.raises(Preempted, match="STOP_TRAINING_AFTER_PROFILING after step 5; saved in"):
        train_engine(make_run(tmp_path, **stop))
    path, state = files.newest(tmp_path / "checkpoints")  # type: ignore[misc]
    assert path.name == "model_iteration5.torch"
    assert state["iteration"] == 5
    train_engine(make_run(tmp_path, **stop))  # the same command continues, behind the window
    assert files.newest(tmp_path / "checkpoints")[1]["iteration"] == 8  # type: ignore[index]


def test_gpu_alone_on_a_cpu(tmp_path: Path) -> None:
    changes = {**BOTH, "PROFILING__RUNTIME_PROFILING__PROFILE_CPU": False}
    with pytest.raises(ConfigError, match="there is nothing to profile"):
        train_engine(make_run(tmp_path, **changes))


def _profile_on_ranks(folder: Path) -> None:
    train_engine(
        make_run(
            folder, **BOTH, **SYNC_BN, PROFILING__PROFILED_RANKS=[1],
            DISTRIBUTED__NUM_PROC_PER_NODE=world_size(),
        )
    )  # fmt: skip
    assert rank() in (0, 1)


@pytest.mark.slow
def test_on_the_ranks_that_are_named(two_ranks: RankPool, tmp_path: Path) -> None:
    two_ranks.run(_profile_on_ranks, tmp_path)
    assert sorted(path.name for path in (tmp_path / "profile").iterdir()) == [
        "rank1_ops.txt", "rank1_trace.json",
    ]  # fmt: skip


def test_a_config_that_is_not_trusted_does_not_say_where_it_is_written(tmp_path: Path) -> None:
    elsewhere = str(tmp_path / "elsewhere")
    assert _hook(tmp_path, 1, 0, 1, OUTPUT_FOLDER=elsewhere).folder == Path(elsewhere)
    with closed(Opened("run")):
        assert _hook(tmp_path, 1, 0, 1, OUTPUT_FOLDER=elsewhere).folder == tmp_path / "profile"
