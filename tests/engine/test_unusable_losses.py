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
    ("what", "message"),
    [
        ("a number", r"a loss must return a tensor, or a dict .*; Gives returned \d"),
        ("nothing", r"a loss must return a tensor, or a dict .*; Gives returned None"),
        ("a dict of numbers", r"a loss must be a tensor; Gives gives as 'size' 0\.5"),
        ("no gradient", r"the loss has no gradient"),
    ],
)
def test_the_error_says_what_it_was(tmp_path: Path, what: str, message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        train(tmp_path, [], LOSS={"name": f"{__name__}:Gives", "Gives": {"what": what}})
