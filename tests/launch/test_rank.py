from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sslengine import startup
from sslengine.engine.task import SelfSupervisionTask
from sslengine.errors import ConfigError, SSLEngineError
from sslengine.launch.rank import run_rank
from tests.config.recipes import resolved


def test_an_error_is_in_the_log_with_its_traceback(tmp_path: Path) -> None:
    run = resolved(CHECKPOINT__DIR=str(tmp_path), DATA__TRAIN__DATA_LIMIT=3)
    with pytest.raises(SSLEngineError):
        run_rank(run, join=False)
    text = (tmp_path / "log.txt").read_text()
    assert "Traceback" in text
    assert "fewer than the global batch" in text


def test_warnings_about_the_config_reach_the_screen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_rank(resolved(CHECKPOINT__DIR=str(tmp_path), MONITOR_PERF_STATS=True), join=False)
    assert "WARNING: config.MONITOR_PERF_STATS has no effect" in capsys.readouterr().err


class CollectsGarbage(nn.Module):
    def forward(self, output: Tensor, target: Any) -> Tensor:
        assert gc.isenabled()
        return output.mean()


def test_garbage_is_collected_in_a_run(tmp_path: Path) -> None:
    """The command pauses that while modules are imported."""
    run = resolved(CHECKPOINT__DIR=str(tmp_path), LOSS__name=f"{__name__}:CollectsGarbage")
    with startup.pause_garbage_collection():
        run_rank(run, join=False)
        assert gc.isenabled()


def test_all_of_torch_can_be_deterministic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a whole run. cuBLAS reads its variable when it is first used."""
    cudnn, seen, started = torch.backends.cudnn, [], SelfSupervisionTask.on_start
    monkeypatch.setattr(cudnn, "deterministic", False)
    monkeypatch.setattr(cudnn, "benchmark", False)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(
        SelfSupervisionTask, "on_start",
        lambda task: seen.append(
            (torch.are_deterministic_algorithms_enabled(), cudnn.deterministic, cudnn.benchmark)
        ) or started(task),
    )  # fmt: skip
    changes = {"CHECKPOINT__DIR": str(tmp_path), "MACHINE__PRECISION": "auto"}
    try:
        run_rank(resolved(**changes, REPRODUCIBILITY={"DETERMINISTIC": True}), join=False)
    finally:
        torch.use_deterministic_algorithms(False)
        variable = os.environ.pop("CUBLAS_WORKSPACE_CONFIG", "")
    assert seen == [(True, True, False)]
    assert variable == ":4096:8"
    assert (tmp_path / "checkpoints" / "checkpoint.torch").exists()
    with pytest.raises(ConfigError, match="CUDNN_BENCHMARK: cannot be combined with DETERMINISTIC"):
        resolved(REPRODUCIBILITY={"DETERMINISTIC": True, "CUDNN_BENCHMARK": True})
