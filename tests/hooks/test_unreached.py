from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sslengine.hooks.gradients import ReportUnreachedParameters
from sslengine.trainer import loop
from tests.ranks import RankPool
from tests.task.runs import make_task


class Astray(nn.Module):
    """One layer that is never called, one whose output goes nowhere, one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(3 * 64, 2)
        self.idle, self.nowhere, self.frozen = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
        self.frozen.requires_grad_(False)

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        scores = self.used(batch["data"].flatten(1))
        self.nowhere(scores)
        return {"loss": scores.square().mean()}


CHANGES: dict[str, Any] = {
    "TRAINER__TRAIN_STEP_NAME": "loss_dict_train_step", "LOSS__name": "",
    "MODEL__BASE_MODEL_NAME": "tests.hooks.test_unreached:Astray",
    "DISTRIBUTED__DETECT_ANOMALOUS_PARAMS": True,
    "DATA__TRAIN__TRANSFORMS": [{"name": "RandomResizedCrop", "size": 8}, {"name": "ToTensor"}],
    "DATA__TRAIN__COLLATE_FUNCTION": "default_collate",
}  # fmt: skip


def test_they_are_named_once_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = make_task(tmp_path, None, **CHANGES)
    with caplog.at_level(logging.WARNING, "sslengine"):
        loop.run(task)
    (message,) = [each.getMessage() for each in caplog.records if "no gradient" in each.message]
    assert "4 parameters get no gradient" in message
    assert "not called in the forward pass: idle.bias, idle.weight." in message
    assert "does not depend on them: nowhere.bias, nowhere.weight." in message
    assert not task.base_model.used._forward_pre_hooks  # nothing of it stays


def test_it_is_off_by_default(tmp_path: Path) -> None:
    changes = {**CHANGES, "DISTRIBUTED__DETECT_ANOMALOUS_PARAMS": False}
    hooks = make_task(tmp_path, None, **changes).hooks
    assert not any(isinstance(hook, ReportUnreachedParameters) for hook in hooks)


def _messages(folder: Path, **changes: Any) -> list[str]:
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("sslengine")
    log.addHandler(handler)
    torch.manual_seed(0)
    try:
        loop.run(make_task(folder, [ReportUnreachedParameters()], **CHANGES, **changes))
    finally:
        log.removeHandler(handler)
    return [message for message in told if "no gradient" in message]


@pytest.mark.parametrize("by_hand", [False, True])
def test_every_rank_tells(tmp_path: Path, two_ranks: RankPool, by_hand: bool) -> None:
    """Where DDP looks for them, and where gradients are filled up with zeros by hand."""
    how = {"MANUAL_GRADIENT_REDUCTION": True} if by_hand else {"FIND_UNUSED_PARAMETERS": True}
    changes = {f"DISTRIBUTED__{key}": value for key, value in how.items()}
    for told in two_ranks.run(_messages, tmp_path, DISTRIBUTED__NUM_PROC_PER_NODE=2, **changes):
        (message,) = told
        assert "idle.bias, idle.weight" in message
        assert "nowhere.bias, nowhere.weight" in message
