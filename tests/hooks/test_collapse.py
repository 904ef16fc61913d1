from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sslengine.hooks.collapse import LogCollapse
from sslengine.monitor.collapse import SPECTRA
from sslengine.python.fit import PythonTask
from tests.engine.tasks import begin


class _Trunk(nn.Module):
    def forward(self, x: Tensor) -> list[Tensor]:
        return [x]


class _Model(nn.Module):
    """Of given features and a given output."""

    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self.trunk, self.output = _Trunk(), output
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, images: Tensor) -> Tensor:
        self.trunk(images)
        return self.scale * self.output


def _begin(
    steps: int, images: Tensor, output: Tensor, folder: Path | None = None, **changes: Any
) -> PythonTask:
    """Only the last step is looked at: what comes before has no rank."""
    batches = [{"data": images * float("nan")}] * (steps - 1) + [{"data": images}]
    loss = lambda output, target: 0 * output.sum()  # noqa: E731
    return begin(batches, _Model(output), loss, LogCollapse(folder=folder), **changes)


def _run(steps: int, images: Tensor, output: Tensor, **changes: Any) -> dict[str, Any]:
    task = _begin(steps, images, output, **changes)
    for _ in range(steps):
        task.step()
    task.on_phase_end()
    assert not task.base_model.trunk._forward_hooks
    return task.phase_results


@pytest.mark.parametrize("steps", [1, 3])
def test_healthy_features_fill_their_dimensions(steps: int) -> None:
    orthogonal = torch.eye(8).repeat(4, 1)
    signs = _run(steps, torch.randn(32, 5, 2, 2), orthogonal)
    assert signs["loss"] == 0.0
    assert signs["projection_rank"] == pytest.approx(8, rel=1e-4)
    # Each of 8 columns is 1 in an eighth of the rows: a standard deviation of sqrt(7) / 8.
    assert signs["projection_std"] == pytest.approx(7**0.5 / 8, rel=0.03)
    assert 10 < signs["trunk_rank"] <= 20


def test_weights_that_the_first_epoch_destroys(caplog: pytest.LogCaptureFixture) -> None:
    """The features have 16 dimensions in the first step, and 2 in the last one."""
    first, last = torch.eye(16), torch.randn(16, 2) @ torch.randn(2, 16)
    nan = torch.full((16, 16), float("nan"))
    for from_weights in (False, True):
        caplog.clear()
        model, loss = _Model(torch.eye(16)), lambda output, target: 0 * output.sum()
        batches = [{"data": each} for each in (first, nan, last)]
        task = begin(batches, model, loss, LogCollapse(from_weights=from_weights))
        for _ in batches:
            task.step()
        task.storage.read()
        task.on_phase_end()
        assert not model.trunk._forward_hooks
        assert ("after 16.0. " in caplog.text) is from_weights
        assert ("fewer dimensions: " in caplog.text) is from_weights


def test_an_error_leaves_no_hook_behind() -> None:
    task = _begin(1, torch.randn(4, 3), torch.randn(4, 3))
    assert task.base_model.trunk._forward_hooks
    task.on_exception(ValueError())
    assert not task.base_model.trunk._forward_hooks


def test_singular_values_of_the_trunks_features_are_kept(tmp_path: Path) -> None:
    images = torch.randn(16, 3, 2, 2)
    task = _begin(1, images, torch.randn(16, 4), tmp_path)
    task.on_phase_start()
    task.step()
    task.on_phase_end()
    rows = images.flatten(1).numpy()
    expected = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False)
    lines = [json.loads(line) for line in (tmp_path / SPECTRA).read_text().splitlines()]
    assert [line["moment"] for line in lines] == ["start", "middle"]  # of two epochs
    for line in lines:
        assert line["values"] == pytest.approx(expected / expected[0], rel=1e-4)
