from __future__ import annotations

import pytest
import torch

from sslengine.errors import TrainingError
from sslengine.losses.views import split_views


def test_first_views_come_first() -> None:
    output = torch.arange(12).view(6, 2)
    views = split_views(output, 2, "my_loss")
    assert torch.equal(views[0], output[:3])
    assert torch.equal(views[1], output[3:])


@pytest.mark.parametrize(
    ("output", "told"),
    [
        (torch.ones(3, 4), r"a tensor of shape \(3, 4\)"),
        (torch.ones(4), r"a tensor of shape \(4,\)"),
        ([torch.ones(2, 4)] * 2, r"\[a tensor of shape \(2, 4\), a tensor of shape \(2, 4\)\]"),
        (None, "NoneType"),
    ],
)
def test_an_output_that_is_not_two_views(output: object, told: str) -> None:
    with pytest.raises(TrainingError, match=f"my_loss needs .* returned {told}"):
        split_views(output, 2, "my_loss")
