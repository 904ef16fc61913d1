"""The host waits for the device in no step, nor for a line of the log: CUDA itself says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sslengine.hooks.events import Hook
from sslengine.testing import runs
from sslengine.trainer import loop
from tests.gpu.place import IS_CUDA, NAME, QUICK, needs_a_gpu, quickstart

pytestmark = needs_a_gpu

# Memory banks that are sharded wait; these are not.
STEPS = 8
WARM_UP = 2  # libraries initialize themselves


class NoWaiting(Hook):
    """From the third step on."""

    def on_step_start(self, task: Any) -> None:
        if task.iteration >= WARM_UP and IS_CUDA:
            torch.cuda.set_sync_debug_mode("error")

    def on_phase_end(self, task: Any) -> None:
        _waiting_is_fine()


def _waiting_is_fine() -> None:
    if IS_CUDA:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", QUICK)
def test_a_step_waits_for_nothing(name: str, tmp_path: Path) -> None:
    values = {
        "LOG_FREQUENCY": 2,
        "OPTIMIZER.num_iterations": STEPS,
        "DATA.TRAIN.DATA_LIMIT": 4 * STEPS,
    }
    resolved = quickstart(name).having(values).resolve()
    task = runs.build(resolved, tmp_path, [NoWaiting()], torch.device(NAME))
    try:
        loop.run(task)
    finally:
        _waiting_is_fine()
    assert task.iteration == STEPS
