from __future__ import annotations

from typing import Any

import pytest
import torch

from sslengine.engine.loss_dict import LossDictTrainStep, are_losses, sum_of_losses
from sslengine.errors import TrainingError
from tests.engine.tasks import make_batch

ONE, TWO = torch.tensor(1.0), torch.tensor([2.0])


def test_the_losses_are_added_up_and_keep_their_names() -> None:
    losses = sum_of_losses({"a": ONE, "b": TWO}, "Net")
    assert {name: value.item() for name, value in losses.items()} == {"loss": 3, "a": 1, "b": 2}
    assert all(value.ndim == 0 for value in losses.values())


def test_a_single_loss_is_the_sum() -> None:
    assert sum_of_losses(ONE, "Net") == {"loss": ONE}
    assert sum_of_losses({"loss": TWO}, "Net").keys() == {"loss"}
    assert sum_of_losses({"a": TWO}, "Net").keys() == {"loss", "a"}


@pytest.mark.parametrize(
    ("output", "named"),
    [
        ({"a": torch.ones(2)}, "'a'"),
        ({"a": ONE, "b": 3.0}, "'b'"),
        ({"loss": ONE, "b": ONE}, "'loss', 'b'"),
        ({}, "no loss"),
        ([ONE], "'loss'"),
    ],
)
def test_what_is_no_loss_is_told(output: Any, named: str) -> None:
    with pytest.raises(TrainingError, match=f"Net .*{named}"):
        sum_of_losses(output, "Net")


def test_predictions_are_no_losses() -> None:
    assert are_losses(ONE)
    assert are_losses({"a": ONE})
    assert not are_losses({})
    assert not are_losses(torch.ones(3, 2))
    assert not are_losses({"boxes": torch.ones(3, 4), "score": ONE})
    assert not are_losses([{"boxes": ONE}])


def test_the_model_gets_the_batch_by_its_own_names() -> None:
    batch = {key: [value] for key, value in make_batch().items()}
    sample = LossDictTrainStep().make_sample(batch, ["data"], ["label"])
    assert sample["input"].keys() == {"data", "label", "data_idx", "data_valid"}
    assert sample["input"]["data"] is batch["data"][0]
    assert sample["target"] is batch["label"][0]
    assert "data_idx" in sample


def test_a_batch_of_another_form_is_the_input() -> None:
    batch = [{"image": 1}]
    sample = LossDictTrainStep().make_sample(batch, ["data"], ["label"])
    assert sample == {"input": batch, "target": None}
