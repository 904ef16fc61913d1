"""What a method remembers in plain attributes, of which no checkpoint has anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sslengine.methods.base import Method, Step
from sslengine.registry import LOSSES, register_loss
from sslengine.trainer import loop
from tests.registries import as_before
from tests.task.runs import make_task


class _Remembers(Method):
    """Of each kind one, most of which no warning is about."""

    def __init__(self) -> None:
        super().__init__()
        self.center = torch.zeros(8)
        self.calls = 0
        self.constant, self.share = torch.ones(3), 0.5
        self._last: Any = None
        self.register_buffer("kept", torch.zeros(8))

    def forward(self, output: Tensor, sample: dict[str, Any], step: Step) -> Tensor:
        mean = output.detach().mean(dim=0)
        self.center = 0.9 * self.center + 0.1 * mean
        self.calls += 1
        self.kept.lerp_(mean, 0.1)
        self._last = mean
        return (output - self.center).square().mean()


class _Saves(_Remembers):
    def rank_state(self) -> dict[str, Any]:
        return {"center": self.center, "calls": self.calls}

    def load_rank_state(self, state: dict[str, Any]) -> None:
        self.center, self.calls = state["center"], state["calls"]


@pytest.mark.parametrize("kind", [_Remembers, _Saves])
def test_what_changes_in_plain_attributes_is_named_once(
    kind: type[Method], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with as_before(LOSSES):
        register_loss("remembers")(kind)
        loop.run(make_task(tmp_path, [], LOSS={"name": "remembers"}))
    said = [each for each in caplog.messages if "no checkpoint has" in each]
    if kind is _Saves:
        assert said == []
    else:
        (text,) = said
        assert text.startswith("_Remembers: calls, center change from step to step, and no ")
