from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sslengine.checkpoint import files
from sslengine.distributed.ranks import world_size
from sslengine.engine.build import build_base_model
from sslengine.engines.train import train as train_engine
from sslengine.errors import ConfigError, Preempted
from sslengine.hooks.options import ProfilingOptions, RuntimeProfilingOptions
from sslengine.hooks.profile import (
    LogGpuMemory,
    LogGpus,
    ProfileSteps,
)
from sslengine.monitor.run_record import peak_memory
from sslengine.trust import Opened, closed
from tests.config.recipes import resolved
from tests.engine.runs import CPU, train
from tests.engine.test_task import SYNC_BN
from tests.engines.runs import make_run
from tests.ranks import RankPool

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
    assert board.read_bytes() == (folder / "rank0_trace.json").read_bytes()


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
    with pytest.raises(ConfigError, match="RUNTIME_PROFILING.PROFILE_CPU"):
        train_engine(make_run(tmp_path, **changes))


def _profile_on_ranks(folder: Path) -> None:
    train_engine(
        make_run(
            folder, **BOTH, **SYNC_BN, PROFILING__PROFILED_RANKS=[1],
            DISTRIBUTED__NUM_PROC_PER_NODE=world_size(),
        )
    )  # fmt: skip


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


# ---- memory and operations


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_hooks_name_the_gpu_and_its_memory(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    task = SimpleNamespace(device=torch.device("cuda", 0), train=True, iteration=1)
    LogGpus().on_start(task)
    LogGpuMemory(0).on_step(task)
    assert "GiB free" in caplog.text
    assert "memory summary" in caplog.text


def test_the_peak_of_the_process_is_what_the_system_tells() -> None:
    metrics = peak_memory(CPU)
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("the system tells it in another way")
    kilobytes = int(status.read_text().split("VmHWM:")[1].split()[0])
    assert metrics == {"rss_gb": pytest.approx(kilobytes * 1024 / 1e9, rel=0.05, abs=0.002)}
