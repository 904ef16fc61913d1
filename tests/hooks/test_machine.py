from __future__ import annotations

import json
import logging
import pickle
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from torch import nn

from sslengine.distributed.ranks import rank
from sslengine.engines.train import train as train_engine
from sslengine.hooks.default import default_hooks
from sslengine.hooks.machine import (
    LogComplexity,
    LogGpuMemory,
    LogGpus,
    LogMemoryPeaks,
    WriteMemorySnapshot,
)
from sslengine.monitor.environment import peak_memory
from sslengine.monitor.store import MetricStore
from tests.config.recipes import resolved
from tests.engine.runs import train
from tests.engines.runs import make_run
from tests.ranks import RankPool

CPU = torch.device("cpu")


def test_complexity_counts_what_one_image_takes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sslengine")
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    task = SimpleNamespace(base_model=model.train(), device=CPU)
    LogComplexity([3, 1000, 1000]).on_start(task)
    # 8 filters of 3 x 3 x 3 at 10^6 places; batch norm in eval mode counts one per activation.
    (message,) = [text for text in caplog.messages if "GFLOP" in text]
    flops = float(message.split(" takes ")[1].split()[0])
    assert flops == pytest.approx(8 * 27 * 1e6 / 1e9, rel=0.1)
    assert "image of 3x1000x1000" in message
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_gpu_hooks_say_nothing_on_a_cpu(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    task = SimpleNamespace(device=CPU, train=True, iteration=1)
    LogGpus().on_start(task)
    LogGpuMemory(0).on_step(task)
    assert caplog.messages == []


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


def test_peaks_are_in_each_line_if_asked_for(tmp_path: Path) -> None:
    train_engine(make_run(tmp_path, HOOKS__MEMORY_SUMMARY__LOG_PEAKS=True))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    steps = [line["rss_gb"] for line in lines if line["kind"] == "step"]
    assert len(steps) == 6
    assert all(peak > 0.05 for peak in steps)
    assert steps == sorted(steps)


def _largest() -> dict[str, float]:
    task = SimpleNamespace(
        train=True, iteration=4, progress=SimpleNamespace(step=4), device=CPU, storage=MetricStore()
    )
    # Rank 1 takes more in the host's memory, rank 0 on its GPU.
    known = {"rss_gb": 1.0 + rank(), "gpu_allocated_gb": 2.0 - rank()}
    with patch("sslengine.hooks.machine.peak_memory", lambda device: known):
        LogMemoryPeaks(2).on_step(task)
        task.iteration = 5
        LogMemoryPeaks(2).on_step(task)  # no line, no metric
    task.storage.read()
    return {name: len(task.storage.history(name)) * value
            for name, value in task.storage.latest().items()}  # fmt: skip


def test_they_are_the_largest_over_ranks(two_ranks: RankPool) -> None:
    assert two_ranks.run(_largest) == [{"rss_gb": 2.0, "gpu_allocated_gb": 2.0}] * 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_peaks_of_the_gpu_are_torchs() -> None:
    device = torch.device("cuda", 0)
    block = torch.empty(2**28, dtype=torch.uint8, device=device)
    metrics = peak_memory(device)
    del block
    assert 0.268 <= metrics["gpu_allocated_gb"] <= metrics["gpu_reserved_gb"]


def test_a_snapshot_of_memory_is_of_a_gpu_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = resolved(HOOKS__EXTRA=[{"name": "layer_memory", "iteration": 1}]).config
    (hook,) = (each for each in default_hooks(config, tmp_path) if "Snapshot" in each.name)
    train(tmp_path, [hook])
    assert "TRACK_BY_LAYER_MEMORY has no effect" in caplog.text
    assert not (tmp_path / "profile").exists()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_snapshot_has_the_allocations_of_its_step(tmp_path: Path) -> None:
    device = torch.device("cuda", 0)
    task = SimpleNamespace(device=device, train=True, iteration=1, run_dir=tmp_path)
    hook = WriteMemorySnapshot(iteration=1)
    for call in (hook.on_start, hook.on_step_start):
        call(task)  # type: ignore[arg-type]
    block = torch.empty(2**26, dtype=torch.uint8, device=device)
    hook.on_step(task)  # type: ignore[arg-type]
    found = pickle.loads((tmp_path / "profile" / "rank0_memory.pickle").read_bytes())
    sizes = [each["size"] for trace in found["device_traces"] for each in trace]
    assert block.numel() in sizes
