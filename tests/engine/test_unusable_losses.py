"""What a user's loss gives by mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

from sslengine.errors import TrainingError
from tests.engine.runs import train


class Gives(nn.Module):
    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def forward(self, output: Tensor, target: Tensor) -> Any:
        loss = output.square().mean()
        return {
            "a number": loss.item(),
            "nothing": None,
            "a dict of numbers": {"loss": loss, "size": 0.5},
            "no gradient": loss.detach(),
        }[self.what]


@pytest.mark.parametrize(
    ("what", "found"),
    [
        ("a number", r"Gives .*'loss' \d"),
        ("nothing", "Gives .*'loss' None"),
        ("a dict of numbers", r"Gives .*'size' 0\.5"),
        ("no gradient", "no gradient"),
    ],
)
def test_the_error_says_what_it_was(tmp_path: Path, what: str, found: str) -> None:
    with pytest.raises(TrainingError, match=found):
        train(tmp_path, [], LOSS={"name": f"{__name__}:Gives", "Gives": {"what": what}})
