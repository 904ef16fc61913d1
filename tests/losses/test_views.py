from __future__ import annotations

import pytest
import torch

from sslengine.config.facts import RunFacts
from sslengine.errors import ConfigError, TrainingError
from sslengine.losses.views import expect_two_views, split_views


def test_first_views_come_first() -> None:
    output = torch.arange(12).view(6, 2)
    views = split_views(output, "my_loss")
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
    with pytest.raises(TrainingError, match=f"my_loss needs .* returned {told}.*simclr_collator"):
        split_views(output, "my_loss")


def test_two_views_are_expected() -> None:
    expect_two_views(RunFacts(views_per_image=2), "my_loss")


@pytest.mark.parametrize("views", [1, 3])
def test_another_number_of_views_is_refused(views: int) -> None:
    with pytest.raises(ConfigError, match=f"my_loss .*TRANSFORMS make {views}.*ImgReplicatePil"):
        expect_two_views(RunFacts(views_per_image=views), "my_loss")
