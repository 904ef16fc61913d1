"""The host waits for the device in no step but at LOG_FREQUENCY: CUDA itself says so."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from sslengine.engine import loop
from sslengine.hooks.events import Hook
from sslengine.testing import runs
from tests.gpu.place import NAME, QUICK, needs_a_gpu, nothing_waits, quickstart

pytestmark = needs_a_gpu

# Memory banks that are sharded wait; these are not.
STEPS = 8
WARM_UP = 2  # libraries initialize themselves


class NoWaiting(Hook):
    """From the third step to the last: the phase's end reads the meters."""

    def __init__(self, exits: ExitStack) -> None:
        self.exits = exits

    def on_step_start(self, task: Any) -> None:
        if task.iteration == WARM_UP:
            self.exits.enter_context(nothing_waits())

    def on_step(self, task: Any) -> None:
        if task.iteration == STEPS:
            self.exits.close()


@pytest.mark.parametrize("name", QUICK)
def test_a_step_waits_for_nothing(name: str, tmp_path: Path) -> None:
    values = {
        "LOG_FREQUENCY": 1000,
        "OPTIMIZER.num_iterations": STEPS,
        "DATA.TRAIN.DATA_LIMIT": 4 * STEPS,
    }
    resolved = quickstart(name).having(values).resolve()
    with ExitStack() as exits:
        task = runs.build(resolved, tmp_path, [NoWaiting(exits)], torch.device(NAME))
        loop.run(task)
    assert task.iteration == STEPS
